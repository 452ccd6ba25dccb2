"""Every figure is exact on a fake clock, for each way in which servers stream."""

import asyncio
from itertools import pairwise

import pytest
from tests.bench.endpoint.support.scripts import SCRIPTS, expected
from tests.bench.endpoint.support.virtual import VirtualServer, run_virtual

from eyas.bench.endpoint.figures import end_to_end_s, figures_of, first_final_s, first_text_s, gaps_s, tpot_s
from eyas.bench.endpoint.load.asking import Asker
from eyas.bench.endpoint.load.pace import Limits
from eyas.bench.endpoint.load.window import Interrupt, WindowRun
from eyas.bench.endpoint.prompts.prompt import Prompt
from eyas.bench.endpoint.records import Load
from eyas.bench.endpoint.target import Arm, Endpoint

pytestmark = pytest.mark.usefixtures("any_lag")

PROMPT = Prompt(id="test/1", category="test", messages=({"role": "user", "content": "Hi"},))
LIMITS = Limits(warm_up_s=0, num_requests=12)


async def window(server, load, limits=LIMITS, interrupt=None, **options):
    asker = Asker(
        Arm(name="A", url="http://stub"),
        Endpoint(root="http://stub", model="m"),
        now=asyncio.get_running_loop().time,
        timeout_s=60,
        server=server,
        keeps_text=True,
    )
    run = WindowRun(
        asker=asker,
        arm="A",
        load=load,
        limits=limits,
        turn=0,
        seed=1,
        prompt_of=lambda number: PROMPT,
        interrupt=interrupt or Interrupt(),
        **options,
    )
    return await run.run()


OFTEN = ("several tokens a chunk", "hidden reasoning")


@pytest.mark.parametrize(
    "name",
    [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in SCRIPTS if name != "reset"],
)
def test_every_figure_of_a_request(name):
    script = SCRIPTS[name]
    server = VirtualServer([name])
    found = run_virtual(window(server, Load(concurrency=1, max_tokens=64)))
    assert len(found.records) == 12 and found.void == ""
    for record, (received, _, _), sent in zip(found.records, server.received, server.sent, strict=False):
        assert record.error is None and record.scheduled_s == record.sent_s == received
        assert [(chunk.at_s, chunk.kind, chunk.num_chars, chunk.tokens) for chunk in record.chunks] == sent
        hidden = script.reasoning if name == "hidden reasoning" else 0
        right = expected([(at - received, kind, tokens) for at, kind, _, tokens in sent], script.tokens, hidden)
        assert first_text_s(record) == right.first_text_s
        assert first_final_s(record) == right.first_final_s
        assert end_to_end_s(record) == right.end_to_end_s
        assert gaps_s(record) == list(right.gaps_s)
        assert tpot_s(record) == right.tpot_s
        assert record.output_tokens == script.tokens and (record.reasoning_tokens or 0) == script.reasoning
        assert record.ended_s - received == sum(send.wait_s for send in script.sends)


def test_rates_of_a_closed_loop():
    """With 4 places and answers of one length: tokens that arrived over the time, to the last bit."""
    script = SCRIPTS["counts along"]
    server = VirtualServer(["counts along"])
    found = run_virtual(window(server, Load(concurrency=4, max_tokens=64), Limits(warm_up_s=0, duration_s=4.0)))
    assert server.most_running == 4
    length_s = sum(send.wait_s for send in script.sends)
    figures = figures_of(found)
    assert figures.seconds == 4.0 and figures.is_exact
    arrived = sum(
        tokens - before + (script.tokens - 20) * (tokens == 20)  # what the last chunk does not count came with it
        for sent in server.sent
        for before, (at, _, _, tokens) in zip((0, 4, 8, 12, 16), sent, strict=False)
        if found.started_s <= at < found.ended_s
    )
    assert figures.tokens_per_s == arrived / 4.0
    assert figures.tokens_per_s == pytest.approx(4 * script.tokens / length_s, rel=0.05)
    assert figures.tokens_per_chunk == script.tokens / 5


def test_the_load_is_kept_up_until_the_last_measured_request_has_ended():
    names = ["stall", "late usage", "several tokens a chunk"]
    server = VirtualServer(names)
    found = run_virtual(window(server, Load(concurrency=3, max_tokens=64)))
    measured = [record for record in found.records if record.is_measured]
    assert len(measured) == 12
    last_s = max(record.ended_s for record in measured)
    begun = [at for at, _, _ in server.received]
    running = [sum(a <= at < b for a, b in _lives(server, names)) for at in begun if at < last_s]
    assert running[3:] == [3] * len(running[3:])


def _lives(server, names):
    lengths = [sum(send.wait_s for send in SCRIPTS[name].sends) for name in names]
    return [(at, at + lengths[number % len(names)]) for number, (at, _, _) in enumerate(server.received)]


def test_an_open_loop_counts_from_the_schedule():
    """A request that is sent late is late: its time to first text holds the delay (coordinated omission)."""
    server = VirtualServer(["late usage"])
    found = run_virtual(window(server, Load(rate=64.0, max_tokens=64), Limits(warm_up_s=0, num_requests=200)))
    measured = [record for record in found.records if record.is_measured]
    assert len(measured) == 200 and max(record.scheduled_s - record.sent_s for record in measured) <= 0
    # Waits of 1/64 s and 1/32 s come after the sending; what is sent late counts from when it was due.
    for record in measured:
        assert first_text_s(record) == pytest.approx(3 / 64 + record.sent_s - record.scheduled_s, abs=1e-9)
    gaps = [b.scheduled_s - a.scheduled_s for a, b in pairwise(measured)]
    assert 1 / 64 * 0.8 < sum(gaps) / len(gaps) < 1 / 64 * 1.25


def test_a_cut_answer_counts_as_a_failure_alone():
    server = VirtualServer(["reset", "late usage"])
    found = run_virtual(window(server, Load(concurrency=1, max_tokens=64)))
    figures = figures_of(found)
    assert (figures.num_measured, figures.num_failed, len(figures.first_text_s)) == (12, 6, 6)
    failed = next(record for record in found.records if record.error)
    assert failed.error.startswith("stub: the connection ended before the answer") and len(failed.chunks) == 2


def test_an_interrupt_keeps_what_is_there():
    async def main():
        interrupt = Interrupt()
        asyncio.get_running_loop().call_later(2.0, interrupt.set)
        return await window(server, Load(concurrency=2, max_tokens=64), Limits(warm_up_s=0, duration_s=60.0), interrupt)

    server = VirtualServer(["several tokens a chunk"])
    found = run_virtual(main())
    assert found.void == "interrupted" and found.ended_s - found.started_s == 2.0
    assert len(found.records) > 10 and all(record.error is None for record in found.records)


def test_a_server_that_only_fails_ends_the_run():
    found = run_virtual(window(VirtualServer(["reset"]), Load(concurrency=2, max_tokens=64)))
    assert found.void == "12 requests in a row failed"  # the last two at one time
    assert all(record.error for record in found.records)


def test_the_warm_up_ends_when_two_stretches_agree():
    server = VirtualServer(["several tokens a chunk"])
    found = run_virtual(window(server, Load(concurrency=2, max_tokens=64), Limits(warm_up_s=30, num_requests=4)))
    assert found.is_warm and 2.0 <= found.warm_up_s < 3.0
    assert sum(record.is_measured for record in found.records) == 4
    assert all(record.scheduled_s >= found.started_s for record in found.records if record.is_measured)
