"""Log-probabilities of a prompt: equal to transformers', the same bits whatever the chunks and the cache."""

import pytest
import torch
from tests.engine.support.exactness import Model, build
from tests.model.support.saved import save_random

from eyas.base.types import Request, SamplingParams
from eyas.model.checkpoints.loader import load_target

LENGTHS = (1, 2, 64, 65, 150, 300)
CHUNKS = (37, 64, 512)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A random checkpoint that transformers saved: our model, and theirs as the oracle."""
    folder = tmp_path_factory.mktemp("saved")
    oracle = save_random(folder, vocab_size=300, seed=7)
    config, weights = load_target(folder, device=torch.device("cpu"), dtype=torch.float32)
    return Model(config=config, weights=weights, head=None), oracle


def prompt_of(length):
    return tuple(torch.randint(300, (length,), generator=torch.Generator().manual_seed(length)).tolist())


def ask(core, prompt, *, request_id="r", **params):
    """The events of one request."""
    events, settings = [], {"temperature": 0, "max_tokens": 2, "prompt_logprobs": 3} | params
    core.add(Request(request_id=request_id, prompt_ids=prompt, params=SamplingParams(**settings)), events.append)
    while not core.is_idle:
        core.step()
    return events


@pytest.mark.parametrize("length", LENGTHS)
def test_equals_transformers_and_chunks_change_no_bit(both, length):
    model, oracle = both
    prompt, found = prompt_of(length), []
    for chunk_tokens in CHUNKS:
        first, *others = ask(build(model, concurrency=1, chunk_tokens=chunk_tokens), prompt)
        found.append(first.prompt_logprobs)
        assert len(first.token_ids) == 1 and not any(event.prompt_logprobs for event in others)
    assert found == found[:1] * len(CHUNKS)
    with torch.inference_mode():
        expected = oracle(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert len(found[0]) == length - 1
    for row, token, item in zip(expected, prompt[1:], found[0], strict=False):
        assert item.logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert [value for _, value in item.top] == pytest.approx(row.topk(3).values.tolist(), abs=1e-4)
        assert [value for _, value in item.top] == pytest.approx([row[i].item() for i, _ in item.top], abs=1e-4)


def test_such_a_request_reads_no_cache_and_others_still_do(both):
    model, _ = both
    core, prompt = build(model, concurrency=4, page_size=8), prompt_of(100)
    cold = ask(core, prompt)
    assert next(event.num_cached for event in ask(core, prompt, prompt_logprobs=None)) == 96
    assert ask(core, prompt) == cold
    choices = ask(core, prompt, n=3, temperature=1, seed=1)
    assert {event.choice: event.num_cached for event in choices} == {0: 0, 1: 96, 2: 96}
    told = [event for event in choices if event.prompt_logprobs is not None]
    assert [(event.choice, event.prompt_logprobs) for event in told] == [(0, cold[0].prompt_logprobs)]


@pytest.mark.parametrize("wanted", [0, 20])
def test_as_many_as_asked_for_beside_other_log_probabilities(both, wanted):
    (first, *_) = ask(build(both[0], concurrency=1), prompt_of(70), prompt_logprobs=wanted, logprobs=1, max_tokens=1)
    assert {len(item.top) for item in first.prompt_logprobs} == {wanted}
    assert [len(item.top) for item in first.logprobs] == [1]


@pytest.mark.slow
def test_preemption_changes_nothing(both):
    model, _ = both
    prompt = prompt_of(300)
    alone = ask(build(model, concurrency=1), prompt)[0].prompt_logprobs
    core, events = build(model, concurrency=3, page_size=8, memory="tight", chunk_tokens=37), []
    for index in range(3):
        params = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True, prompt_logprobs=3)
        core.add(Request(request_id=str(index), prompt_ids=prompt, params=params), events.append)
    while not core.is_idle:
        core.step()
    assert core.stats().num_preemptions > 0
    assert [event.prompt_logprobs for event in events if event.prompt_logprobs is not None] == [alone] * 3
