"""Driving a real engine: which rounds are steady, what a run leaves behind, what prefill counts."""

from contextlib import closing

import pytest

from eyas.base.settings.config import EngineConfig
from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.bench.engine.drive import prefill_s, run_requests
from eyas.engine.startup.load import load_engine_parts, load_model


@pytest.fixture(scope="module")
def model(model_folder):
    return load_model(EngineConfig(model=str(model_folder), draft=str(model_folder / "eagle3"), draft_tokens=2))


def requests(*lengths, name="r"):
    return [
        Request(
            request_id=f"{name}{i}",
            prompt_ids=tuple(range(1, 21)),
            params=SamplingParams(temperature=0, max_tokens=length, ignore_eos=True),
        )
        for i, length in enumerate(lengths)
    ]


def test_the_batch_is_kept_full_and_only_full_rounds_are_timed(model):
    core = model.build(drafter="none").core
    core.expert_counts = []
    run = run_requests(core, requests(5, 9, 7), batch=2)
    # One step reads both prompts and draws a first token each. Then 4 rounds with both; the third answer's prompt is
    # read beside a round; it and the second go on for 3 rounds until the second has its 9 tokens, then it is alone.
    assert [len(answer) for answer in run.answers] == [5, 9, 7]
    assert (run.steady_rounds, run.steady_tokens) == (7, 14)
    assert len(run.steady_experts) == 7 * model.config.num_layers
    top = model.config.experts_per_token
    assert all(top <= number <= 2 * top for number in run.steady_experts)
    assert core.is_idle and run.steady_s > 0


def test_the_rest_is_cancelled_when_the_batch_cannot_be_filled(model):
    core = model.build().core
    finished = []
    run = run_requests(core, requests(4, 200), batch=2, to_end=False, on_finish=lambda: finished.append(1))
    ends = [events[-1].finish for events in run.events.values()]
    assert ends == [FinishReason.LENGTH, FinishReason.CANCELLED] and len(finished) == 2
    assert core.is_idle and core.stats().pages_used == {"full": 0, "sliding": 0}


def test_a_run_may_be_cut_behind_some_rounds(model):
    core = model.build().core
    run = run_requests(core, requests(50, 50, 50), batch=2, max_rounds=5)
    assert 5 <= run.steady_rounds <= 6 and core.is_idle
    assert [len(events) > 0 for events in run.events.values()] == [True, True, False]


def test_steps_under_way_are_read_before_a_run_ends(model):
    core = model.build(lag=1).core
    assert [len(answer) for answer in run_requests(core, requests(5, 9, 7), batch=2).answers] == [5, 9, 7]
    run_requests(core, requests(4, 200, name="s"), batch=2, to_end=False)
    assert core.is_idle


def test_prefill_refuses_what_is_cached(model):
    core = model.build().core
    assert prefill_s(core, requests(1)) > 0
    with pytest.raises(AssertionError):
        prefill_s(core, requests(1, name="again"))


def test_a_made_model_is_known_as_such(model, model_folder, tmp_path):
    assert model.simulated
    (tmp_path / "plain").mkdir()
    for path in model_folder.iterdir():
        if path.is_file():
            (tmp_path / "plain" / path.name).write_bytes(path.read_bytes())
    config = tmp_path / "plain" / "config.json"
    config.write_text(config.read_text().replace("eyas_random_weights", "something_else"))
    real = EngineConfig(model=str(tmp_path / "plain"))
    assert not load_model(real).simulated
    assert load_model(EngineConfig(model=real.model, draft=str(model_folder / "eagle3"))).simulated


def test_parts_and_model_are_loaded_alike(model, model_folder):
    from eyas.engine.ports.threaded import Engine

    config = EngineConfig(model=str(model_folder), draft=str(model_folder / "eagle3"), draft_tokens=2)
    parts = load_engine_parts(config)
    with closing(Engine(parts.built, parts.tokenizer, parts.info)) as engine:
        assert engine.info.drafter == "eagle3" and engine.info.context == model.options.context
