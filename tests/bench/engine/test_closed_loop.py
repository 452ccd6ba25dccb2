"""A closed loop on a real engine: how many run, which are measured, and what arrivals say of an answer."""

import time

import pytest

from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig
from eyas.base.types import SamplingParams
from eyas.bench.engine.closed_loop import Answer, random_requests, run_closed_loop, run_jitter
from eyas.engine.startup.load import load_model

VOCAB = 256


@pytest.fixture(scope="module")
def model(model_folder):
    return load_model(EngineConfig(model=str(model_folder), draft="none", context=256))


def requests(name, *, num_tokens=20, max_tokens=6):
    params = SamplingParams(ignore_eos=True, max_tokens=max_tokens)
    return random_requests(VOCAB, num_tokens=num_tokens, params=params, name=name)


@pytest.mark.parametrize("lag", [0, 1])
def test_the_loop_stays_full_and_measures_whole_answers(model, lag):
    core = model.build(concurrency=3, lag=lag).core
    num_running, lengths, ended_at = [], {}, {}
    step, add = core.step, core.add

    def counted_step():
        num_running.append(len(core._sequences))
        return step()

    def noted_add(request, deliver):
        lengths[request.request_id] = request.params.max_tokens

        def noted(event):
            if event.finish is not None:
                ended_at[request.request_id] = time.perf_counter()
            deliver(event)

        add(request, noted)

    core.step, core.add = counted_step, noted_add
    done = run_closed_loop(core, requests("loop"), concurrency=3, num_measured=4)
    assert [answer.num_tokens for answer in done.answers] == [6] * 4
    firsts = list(lengths)[:3]
    assert max(ended_at[name] for name in firsts) <= min(answer.start for answer in done.answers)
    assert list(lengths.values())[:3] == [2, 4, 6] and set(list(lengths.values())[3:]) == {6}
    steps_to_end = num_running.index(0) if 0 in num_running else len(num_running)
    assert set(num_running[:steps_to_end]) == {3}
    assert done.tokens_per_s > 0 and core.is_idle and core.stats().num_cached_tokens == 0


def test_a_long_prompt_comes_between_rounds(model):
    core = model.build(concurrency=4, busy_chunk_tokens=16).core
    long = next(requests("long", num_tokens=100, max_tokens=1))
    jitter = run_jitter(core, requests("short", num_tokens=8, max_tokens=240), long, concurrency=3)
    # 7 steps of 16 tokens and the step of its first token; each ends a gap of every answer.
    assert len(jitter.quiet_s) == 3 * 100 and len(jitter.mixed_s) == 3 * 7
    assert jitter.first_s > sum(jitter.mixed_s) / 3 * 0.9 and core.is_idle


def test_an_answer_that_ends_before_the_long_prompt_is_said_so(model):
    core = model.build(concurrency=4).core
    with pytest.raises(UserError, match="ended before the long prompt was read; ask for a longer --context"):
        run_jitter(core, requests("short", max_tokens=64), next(requests("long", max_tokens=1)), concurrency=3)
    assert core.is_idle


def test_an_answer_is_timed_from_its_first_token():
    answer = Answer(1.0, [(3.0, 2), (4.0, 1), (6.0, 3)])
    assert (answer.first_s, answer.num_tokens, answer.token_s, answer.gaps_s) == (2.0, 6, 0.75, [1.0, 2.0])
    assert Answer(1.0, [(3.0, 2)]).token_s is None
