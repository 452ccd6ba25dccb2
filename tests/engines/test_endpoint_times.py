"""llama-server as the judge of `eyas bench endpoint`: its own `timings` of each request beside what the client saw."""

import json
from statistics import median
from typing import ClassVar

import pytest
from tests.engines.support.llama import command, running

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.bench.endpoint.figures import first_text_s, tpot_s
from eyas.bench.endpoint.load import asking
from eyas.bench.endpoint.load.asking import TimedReader
from eyas.bench.endpoint.load.pace import Limits
from eyas.bench.endpoint.load.session import Settings, Side, run_to_end
from eyas.bench.endpoint.progress import Shown
from eyas.bench.endpoint.prompts.builtin import builtin
from eyas.bench.endpoint.records import Load
from eyas.bench.endpoint.target import Arm, identify
from eyas.model.gguf.export import export_head, export_target

NUM_REQUESTS, MAX_TOKENS = 12, 64


class Told(TimedReader):
    """Keeps what llama-server says with each chunk: milliseconds for the prompt, and since then."""

    times: ClassVar[dict[float, tuple[float, float]]] = {}  # by the client's time of the chunk

    def read(self, data, pieces):
        before = len(self.chunks)
        super().read(data, pieces)
        for chunk in self.chunks[before:]:
            timings = json.loads(data)["timings"]
            self.times[chunk.at_s] = timings["prompt_ms"], timings["predicted_ms"]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    export_target(DEMO, folder / "model.gguf", weights="stored", name="test")
    export_head(DEMO / OWN_HEAD, folder / "head.gguf", target_folder=DEMO, weights="stored", name="test")
    return folder


@pytest.mark.parametrize("with_head", [False, True])
def test_its_own_timings_agree(llama_server, gguf, tmp_path, with_head, monkeypatch):
    monkeypatch.setattr(asking, "TimedReader", Told)
    argv = command(llama_server, gguf / "model.gguf", gguf / "head.gguf" if with_head else None)
    argv += ["-t", "1", "-tb", "1"]  # two threads that wait for each other are slow where others compute, too
    load = Load(concurrency=1, mode="fixed", max_tokens=MAX_TOKENS)
    windows = []
    with running(argv, tmp_path / "log") as client:
        arm = Arm(name="A", url=str(client.base_url))
        endpoint = identify(arm)
        assert endpoint.engine == "llama.cpp" and endpoint.version and endpoint.is_here
        limits = Limits(warm_up_s=5.0, num_requests=NUM_REQUESTS)
        ended = run_to_end(
            [Side(arm=arm, endpoint=endpoint)],
            builtin("chat"),
            Settings(loads=(load,), prompts=("chat",), turns=1, limits=limits),
            run="test",
            keep=windows.append,
            watcher=Shown(),
        )
    assert ended == ""
    records = [record for record in windows[0].records if record.is_measured]
    assert [record.output_tokens for record in records] == [MAX_TOKENS] * NUM_REQUESTS
    late_ms, ours, theirs = [], [], []
    for record in records:
        first, last = record.chunks[0], record.chunks[-1]
        (prompt_ms, first_ms), (_, last_ms) = Told.times[first.at_s], Told.times[last.at_s]
        late_ms.append(1e3 * first_text_s(record) - prompt_ms - first_ms)
        ours.append(1e3 * tpot_s(record))
        theirs.append((last_ms - first_ms) / (MAX_TOKENS - first.tokens))
    print(
        f"a token takes {median(ours):.3f} ms, by its own timings {median(theirs):.3f}; the first text comes "
        f"{median(late_ms):.1f} ms after what it says of prompt and first tokens"
    )
    assert median(ours) == pytest.approx(median(theirs), rel=0.05)
    assert 0 < median(late_ms) < 100  # template, tokenizing, and its queue, which its timings leave out
