"""Masks that are late: the others go on, the late sequence gets on, and no token changes whichever rounds it misses."""

import random
import threading
from dataclasses import replace

import llguidance
import pytest
import torch
from tests.engine.support.exactness import build, reference_of, requests_for, run
from tests.engine.support.schemas import SCHEMAS, grammar_of

from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.engine.step import core as core_module

PROMPT = tuple(range(40, 70))
SETUPS = [
    {"drafter": "none", "lag": 1},
    {"drafter": "ngram", "draft_tokens": 3, "lag": 0},
    {"drafter": "eagle3", "draft_tokens": 4, "lag": 0},
    {"drafter": "eagle3", "draft_tokens": "auto", "lag": 1},
]
SOME_SETUPS = [pytest.param(setup, marks=[pytest.mark.slow] * (index % 2 == 0)) for index, setup in enumerate(SETUPS)]
GRAMMAR = "start: /[a-z ]{500}/"


def ask(request_id, **params):
    params = {"seed": 3, "max_tokens": 12, "ignore_eos": "grammar" not in params, "temperature": 1} | params
    return Request(request_id=request_id, prompt_ids=PROMPT, params=SamplingParams(**params))


@pytest.fixture
def gate(monkeypatch):
    """Masks behind the third token of any grammar wait until it is set."""
    gate = threading.Event()

    class Matcher:
        def __init__(self, inner, num_consumed=0):
            self.inner, self.num_consumed = inner, num_consumed

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def deep_copy(self):
            return Matcher(self.inner.deep_copy(), self.num_consumed)

        def consume_token(self, token):
            self.num_consumed += 1
            return self.inner.consume_token(token)

        def consume_tokens(self, tokens):
            self.num_consumed += len(tokens)
            return self.inner.consume_tokens(tokens)

        def rollback(self, num_tokens):
            self.num_consumed -= num_tokens
            return self.inner.rollback(num_tokens)

        def unsafe_compute_mask_ptr(self, address, size):
            assert self.num_consumed < 3 or gate.wait(60), "the engine waits for this mask"
            self.inner.unsafe_compute_mask_ptr(address, size)

    real = llguidance.LLMatcher
    monkeypatch.setattr(llguidance, "LLMatcher", lambda *args, **kwargs: Matcher(real(*args, **kwargs)))
    yield gate
    gate.set()


class Log:
    """What became of requests, by name."""

    def __init__(self):
        self.tokens, self.ends = {}, {}

    def __call__(self, event):
        self.tokens.setdefault(event.request_id, []).extend(event.token_ids)
        if event.finish is not None:
            self.ends[event.request_id] = (event.finish, event.error)


def step_until(core, is_done):
    for _ in range(5000):
        if is_done():
            return
        core.step()
        core.scheduler.check()
    raise AssertionError("it never came to that")


@pytest.fixture(scope="module")
def five(random_speaker):
    """Requests, the first of which is bound by a grammar, and what each says alone."""
    requests = [ask("late", grammar=GRAMMAR), ask("plain"), ask("bound", allowed_token_ids=tuple(range(300, 400)))]
    requests += [ask("next"), ask("last", max_tokens=5)]
    return requests, {name: tokens for (name, _), (tokens, _, _) in reference_of(random_speaker, requests).items()}


@pytest.mark.parametrize("setup", SOME_SETUPS)
def test_all_others_go_on_while_a_mask_is_computed(random_speaker, five, gate, setup):
    requests, expected = five
    core, log = build(random_speaker, concurrency=3, **setup), Log()
    for request in requests:
        core.add(request, log)
    step_until(core, lambda: len(log.ends) == 4)
    assert "late" not in log.ends and len(log.tokens["late"]) <= 3
    gate.set()
    step_until(core, lambda: core.is_idle)
    assert log.tokens == expected


@pytest.mark.parametrize("setup", SOME_SETUPS)
def test_a_mask_that_takes_too_long_ends_its_request(random_speaker, gate, setup, monkeypatch):
    monkeypatch.setattr(core_module, "MASK_TIMEOUT_S", 0.05)
    core, log = build(random_speaker, concurrency=2, **setup), Log()
    for request in (ask("late", grammar=GRAMMAR), ask("plain"), ask("next")):
        core.add(request, log)
    step_until(core, lambda: core.is_idle)
    assert log.ends.pop("late") == (FinishReason.ERROR, core_module.TOO_SLOW)
    assert log.ends == dict.fromkeys(("plain", "next"), (FinishReason.LENGTH, None))
    assert core.scheduler.full.num_held == core.scheduler.sliding.num_held == 0


def test_a_sequence_may_be_cancelled_while_its_mask_is_computed(random_speaker, gate):
    core, log = build(random_speaker, concurrency=1), Log()
    core.add(ask("late", grammar=GRAMMAR), log)
    step_until(core, lambda: log.tokens.get("late") and core.scheduler.running[0].masks.is_busy)
    core.cancel("late")
    core.add(ask("next"), log)
    step_until(core, lambda: core.is_idle)
    assert log.ends == {"late": (FinishReason.CANCELLED, None), "next": (FinishReason.LENGTH, None)}


class Chance:
    """Jobs run at once, in part, or not before some step to come; all by chance, whatever the clock says."""

    def __init__(self, monkeypatch, seed):
        from eyas.engine.sequences import mask_jobs

        self.rng, self.late, self.num_late = random.Random(seed), [], 0
        num_ready_of = mask_jobs.SequenceMasks.num_ready

        def start(threads, job, *, is_slow):
            self.late.append(job)
            if self.rng.random() < 0.6:
                self.end_one()

        def some_ready(masks):
            num_ready, num_rows = num_ready_of(masks), len(masks._job.words_RW)
            if num_ready is None and num_rows > 1 and self.rng.random() < 0.3:
                num_ready = self.rng.randrange(num_rows)
            self.num_late += num_ready is not None
            return num_ready

        def wait_for_masks(sequences, seconds, *, for_any=False):
            while self.late and self.rng.random() < 0.6:
                self.end_one()

        monkeypatch.setattr(mask_jobs.MaskThreads, "start", start)
        monkeypatch.setattr(mask_jobs.SequenceMasks, "num_ready", some_ready)
        monkeypatch.setattr("eyas.engine.sampling.masking.wait_for_masks", wait_for_masks)
        monkeypatch.setattr(core_module, "wait_for_masks", wait_for_masks)

    def end_one(self):
        job = self.late.pop(self.rng.randrange(len(self.late)))
        job.run()
        job.seconds = self.rng.choice((1e-6, 1e-6, 1e-6, 1e-6, 1.0))


LATE_SETUPS = [
    {"drafter": "eagle3", "draft_tokens": 4, "lag": 1},
    {"drafter": "oracle", "draft_tokens": 3, "lag": 0, "memory": "tight", "page_size": 8},
    {"drafter": "ngram", "draft_tokens": 3, "lag": 1, "chunk_tokens": 37},
    {"drafter": "eagle3", "draft_tokens": "auto", "lag": 0},
]


def bound_requests(model, max_tokens):
    """Schemas, all kinds of sampling, and every third request free."""
    requests = requests_for(model, 9, seed=3, min_tokens=1, max_prompt=60)
    free = {"allowed_token_ids": None, "bad_words": (), "stop_token_ids": ()}
    schemas = list(SCHEMAS.values())[::3]
    return [
        replace(
            request,
            params=replace(
                request.params,
                max_tokens=max_tokens,
                min_tokens=0,
                **({} if index % 3 == 2 else free | {"grammar": grammar_of(schemas[index % len(schemas)])}),
            ),
        )
        for index, request in enumerate(requests)
    ]


@pytest.fixture(scope="module")
def alone(random_speaker, request):
    """Requests, how many tokens long, and what each says alone."""
    requests = bound_requests(random_speaker, request.param)
    return requests, reference_of(random_speaker, requests)


@pytest.mark.parametrize(
    ("alone", "setup"),
    [
        (20, LATE_SETUPS[1]),
        *(pytest.param(50, setup, marks=pytest.mark.slow) for setup in LATE_SETUPS),
    ],
    indirect=["alone"],
    scope="module",  # else what each says alone is computed for each set-up
)
def test_masks_that_are_late_by_chance_change_no_token(random_speaker, alone, setup, monkeypatch):
    requests, reference = alone
    core = build(random_speaker, concurrency=4, reference=reference, **setup)
    chance = Chance(monkeypatch, seed=1)
    assert run(core, requests, check=True) == reference
    assert chance.num_late > 15


def test_a_round_that_commits_nothing_leaves_the_drafts_as_they_were(random_speaker):
    core = build(random_speaker, drafter="eagle3", draft_tokens=4, concurrency=1)
    core.add(ask("r", max_tokens=60), lambda event: None)
    for _ in range(4):
        core.step()
    drafter, state, sequences = core.runner.drafter, core.runner.state, core.scheduler.running
    slots = torch.tensor([sequences[0].slot])
    with torch.inference_mode():
        first = drafter.propose(state, slots, sequences, 4, 200)
        drafter.note_commit(5)
        assert torch.equal(first.ids_SK, drafter.propose(state, slots, sequences, 4, 200).ids_SK)
