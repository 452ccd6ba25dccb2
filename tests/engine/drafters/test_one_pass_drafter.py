"""A drafter of another kind, known to the engine by one registration: a head of one pass with two caches.

Its drafts are compared with a dense computation, which tells whether its caches hold what they should after prefix
hits, preemption and pauses: no comparison of outputs can see that.
"""

from dataclasses import replace

import pytest
import torch
from tests.engine.support.exactness import Scripted, build, differing, reference_of, requests_for, run
from tests.engine.support.one_pass import SHAPES, USUAL_BACKLOG, OnePassDrafter, dense_drafts, one_pass_head
from tests.model.support.forward import PAGE_SIZE, row_batch

from eyas.base.types import Request, SamplingParams
from eyas.engine.draft_length.step_costs import HeadWork
from eyas.engine.drafters.registry import DRAFTERS
from eyas.engine.round.types import Drafts
from eyas.engine.startup.build import MAX_BACKLOG, EngineOptions, auto_draft_length, build_engine
from eyas.engine.startup.memory import page_bytes
from eyas.engine.startup.warm_up import warm_up
from eyas.engine.step.timed import timed_stages
from eyas.model.networks.gpt_oss import GptOss
from eyas.model.weights import tensors_of

MAX_DRAFTS = 5
CLEAR = 1e-3  # a choice by less than this margin may fall either way in fp32


class Recorder(OnePassDrafter):
    """Keeps what the head drafts, and proposes the coming tokens instead, some wrong, so that rounds accept some."""

    reference, seen = {}, []

    def propose(self, state, slots_S, sequences, num_drafts, max_length):
        drafts = super().propose(state, slots_S, sequences, num_drafts, max_length)
        steered = drafts.ids_SK.clone()
        for row, (slot, valid) in enumerate(zip(slots_S.tolist(), drafts.num_valid_S.tolist(), strict=True)):
            key, length = (sequences[row].request.request_id, sequences[row].choice), state.length_S[slot].item()
            if state.live_S[slot] and valid:
                self.seen.append((key, length, drafts.ids_SK[row].tolist()))
            coming = self.reference[key][0][length - sequences[row].prompt_length :][:num_drafts]
            steered[row, : len(coming)] = torch.tensor(coming)
            if length % 3:
                steered[row, length % num_drafts] += 1
        return Drafts(steered % state.vocab_size, drafts.num_valid_S)


@pytest.fixture(scope="module")
def model(random_model):
    return replace(random_model, head=one_pass_head(random_model.config))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """All that the engine is told of it."""
    monkeypatch.setitem(DRAFTERS, "one pass", OnePassDrafter)


def requests_of(num_requests, vocab_size, *, temperature=0, prefix=80, own=1, max_tokens=40):
    """Prompts that share a prefix and differ after it, by `own` tokens or some more."""
    generator = torch.Generator().manual_seed(3)
    shared = torch.randint(vocab_size, (prefix,), generator=generator).tolist()
    requests = []
    for index in range(num_requests):
        rest = torch.randint(vocab_size, (own + 13 * index % 37,), generator=generator).tolist()
        params = SamplingParams(temperature=temperature, seed=index, max_tokens=max_tokens, ignore_eos=True)
        requests.append(Request(request_id=str(index), prompt_ids=tuple(shared + rest), params=params))
    return requests


def taps_of(model, tokens):
    """fp64 [T, C] of all tokens."""
    target = GptOss(model.config, model.weights, max_positions=len(tokens), taps=model.head.config.taps)
    batch = row_batch(torch.tensor([tokens]))
    num_pages = batch.tables.full.numel() + 1
    return target.forward(batch, target.new_cache(num_pages, num_pages, PAGE_SIZE)).taps_TC.double()


@torch.inference_mode()
def compare(model, requests, results, seen):
    """Every draft, but those of choices that rounding may decide; returns how many were compared."""
    by_id, taps, total, compared = {request.request_id: request for request in requests}, {}, 0, 0
    for key, length, drafts in seen:
        request = by_id[key[0]]
        tokens = list(request.prompt_ids) + results[key][0]
        if key not in taps:
            taps[key] = taps_of(model, tokens)
        expected, margins = dense_drafts(model, taps[key], tokens[:length], len(drafts), request)
        clear = [draft for draft, margin in zip(drafts, margins.tolist(), strict=True) if margin > CLEAR]
        assert clear == expected[margins > CLEAR].tolist(), f"{key} at length {length}"
        total, compared = total + len(drafts), compared + len(clear)
    assert compared >= 0.95 * total
    return compared


@pytest.fixture
def check(model, monkeypatch):
    """`check(requests, schedule, **options)`: tokens and drafts are right; returns the engine's counters."""

    def check(requests, schedule, **options):
        reference = reference_of(model, requests)
        monkeypatch.setattr(Recorder, "reference", reference)
        monkeypatch.setattr(Recorder, "seen", seen := [])
        monkeypatch.setitem(DRAFTERS, "one pass", Recorder)
        core = build(model, drafter="one pass", draft_tokens=MAX_DRAFTS, **options)
        core.draft_length = Scripted(schedule)
        results = run(core, requests, check=True)
        assert results == reference
        assert compare(model, requests, results, seen) >= 40
        return core.stats()

    return check


@pytest.mark.parametrize("temperature", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_rounds_that_accept(check, model, temperature):
    """Each of the K drafts of a pass has the noise of its own position."""
    requests = requests_of(4, model.config.vocab_size, temperature=temperature)
    stats = check(requests, [5, 3, 4, 1], concurrency=4, page_size=8)
    assert stats.num_accepted_tokens > 20


@pytest.mark.slow
def test_a_pause_is_caught_up(check, model):
    schedule = [3, *[0] * (MAX_BACKLOG - 4), 5, 2, 0, 4]
    check(requests_of(2, model.config.vocab_size, max_tokens=80), schedule, concurrency=2)


@pytest.mark.slow
def test_prefix_hits_bring_its_caches(check, model):
    stats = check(requests_of(3, model.config.vocab_size), [4], concurrency=1, page_size=8, chunk_tokens=37)
    assert stats.num_cached_tokens >= 2 * 64


@pytest.mark.slow
def test_preemption_brings_its_caches(check, model):
    requests = requests_of(5, model.config.vocab_size, prefix=8, own=120, max_tokens=60)
    stats = check(requests, [*[0] * 26, *[3] * 400], concurrency=5, memory="tight", lag=1)
    assert stats.num_preemptions > 0


def test_the_comparison_notices_another_pairing(check, model, monkeypatch):
    """Taps of the position before, as EAGLE-3 has them, and nothing else."""
    right = OnePassDrafter.needs_of
    monkeypatch.setattr(Recorder, "needs_of", lambda *args: replace(right(*args), tap_shift=1))
    with pytest.raises(AssertionError, match="at length"):
        check(requests_of(1, model.config.vocab_size), [3], concurrency=1)


@pytest.fixture(scope="module")
def alone(model):
    """Requests, and what each says alone."""
    requests = requests_for(model, 6, min_tokens=24)
    return requests, reference_of(model, requests)


@pytest.mark.parametrize(
    "setup",
    [
        {"draft_tokens": "auto", "concurrency": 3, "page_size": 8, "lag": 1, "chunk_tokens": 37},
        *(
            pytest.param(setup, marks=pytest.mark.slow)
            for setup in (
                {"draft_tokens": 3, "concurrency": 8, "page_size": 32, "memory": "tight", "cache": "warm"},
                {"draft_tokens": 7, "concurrency": 1, "cache": "warm", "lag": 1},
            )
        ),
    ],
)
def test_no_token_changes(model, alone, setup):
    wrong, stats = differing(model, *alone, {"drafter": "one pass", **setup})
    assert not wrong and stats.num_draft_tokens > 0


def test_pages_count_its_caches_and_no_taps(model):
    runner = build(model, drafter="one pass", concurrency=2, page_size=16).runner
    assert [tuple(cache.k.shape[1:]) for cache in runner.drafter.caches] == [(kv, 16, dim) for _, kv, dim in SHAPES]
    full, sliding = (
        next(c.k for c, s in zip(runner.caches, model.config.layer_is_sliding, strict=True) if s == kind).shape[0]
        for kind in (False, True)
    )
    tensors = [part for cache in (*runner.caches, *runner.drafter.caches) for part in cache.tensors]
    size = page_bytes(model.config, runner.drafter.needs, 16, torch.float32)
    assert sum(part.nbytes for part in tensors) == full * size.full + sliding * size.sliding
    assert runner.tap_pages_PC.nbytes == 0  # a position's taps are its own: no prefix hit needs any


def test_the_memory_map_names_it(model):
    options = EngineOptions(context=256, concurrency=2, drafter="one pass", draft_tokens=3, kv_bytes=1 << 26)
    built = build_engine(model.config, model.weights, options, head=model.head)
    assert built.memory_bytes["head"] == sum(part.nbytes for part in tensors_of(model.head.weights))
    assert 0 < built.memory_bytes["kv"] <= 1 << 26


def test_costs_are_those_of_one_pass(model):
    """However many it drafts: what the first pass costs is paid once, and a draft more costs a row of it."""
    options = EngineOptions(context=256, drafter="one pass")
    costs = auto_draft_length(options, model.config, model.weights).costs
    table = costs.table(1)
    first, more = table[1, 1] - table[0, 1], [table[k + 1, 7] - table[k, 7] for k in range(1, 7)]
    assert all(0 < step < first / 5 for step in more)
    assert OnePassDrafter.work(4) == HeadWork(1, USUAL_BACKLOG + 5) and OnePassDrafter.work(0) == HeadWork(0, 0)


def test_clocks_and_the_start(model):
    core = build(model, drafter="one pass", draft_tokens="auto", concurrency=2)
    with timed_stages(core.runner) as timed:
        warm_up(core, 0.5)
    assert {"catch up", "block", "verify", "finish"} <= timed.totals().keys()
    assert core.draft_length.costs.is_measured
