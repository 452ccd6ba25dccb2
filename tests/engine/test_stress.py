"""Random requests under page pressure, cancelled at random: all end, once, and nothing is left behind."""

import random
import threading
from collections import defaultdict
from dataclasses import replace

import pytest
from tests.engine.support.exactness import least_bytes

from eyas.base.types import FinishReason, ModelInfo, Request, SamplingParams
from eyas.engine.ports.threaded import Engine
from eyas.engine.startup.build import EngineOptions, build_engine

CONTEXT = 96
SETUPS = [
    {"drafter": "eagle3", "draft_tokens": 3, "lag": 1, "page_size": 8},
    {"drafter": "eagle3", "draft_tokens": "auto", "lag": 0, "page_size": 4, "chunk_tokens": 13},
    {"drafter": "ngram", "draft_tokens": 5, "lag": 1, "page_size": 4},
    {"drafter": "none", "lag": 0, "page_size": 16, "chunk_tokens": 40},
]


def built(model, setup):
    options = EngineOptions(context=CONTEXT, concurrency=6, kv_bytes=1 << 28, seed=0, **setup)
    options = replace(options, kv_bytes=least_bytes(model, options) * 5 // 4)
    return build_engine(model.config, model.weights, options, head=model.head)


def random_request(rng, index, vocab_size):
    shared = [7, 3] * 30
    prompt = shared[: rng.choice((0, 17, 40, 56))] + [rng.randrange(vocab_size) for _ in range(rng.randint(1, 20))]
    max_tokens = rng.choice((1, 2, rng.randint(1, 30), None))
    params = SamplingParams(
        temperature=rng.choice((0, 1, 2)),
        top_k=rng.choice((0, 5)),
        top_p=rng.choice((1, 0.8)),
        n=rng.choice((1, 1, 1, 1, 2, 3)),
        max_tokens=max_tokens,
        min_tokens=min(rng.choice((0, 3)), max_tokens or 3),
        stop_token_ids=tuple(rng.sample(range(vocab_size), 8)),
        logprobs=rng.choice((None, None, 2)),
        presence_penalty=rng.choice((0, 0, 1)),
        logit_bias=rng.choice(({}, {5: 2.0})),
        prompt_logprobs=rng.choice((None, None, None, 1)),
        allowed_token_ids=rng.choice((None, None, tuple(range(20, 60)))),
        bad_words=rng.choice(((), (), ((7, 3), (21,), (22, 22, 22)))),
    )
    return Request(request_id=str(index), prompt_ids=tuple(prompt), params=params)


class Ledger:
    """Events by choice, checked as they come: none after the last, token counts within their bounds."""

    def __init__(self):
        self.tokens = defaultdict(list)
        self.finish = {}

    def deliver(self, event):
        key = (event.request_id, event.choice)
        assert key not in self.finish, "an event after the last"
        assert event.error is None
        assert event.logprobs is None or len(event.logprobs) == len(event.token_ids)
        self.tokens[key] += event.token_ids
        if event.finish is not None:
            self.finish[key] = event.finish

    def is_done(self, request):
        return all((request.request_id, choice) in self.finish for choice in range(request.params.n))

    def check(self, request, was_cancelled):
        params = request.params
        for choice in range(params.n):
            key = (request.request_id, choice)
            budget = min(params.max_tokens or CONTEXT, CONTEXT - len(request.prompt_ids))
            finish, tokens = self.finish[key], self.tokens[key]
            assert len(tokens) <= budget
            if finish is FinishReason.LENGTH:
                assert len(tokens) == budget
            elif finish is FinishReason.STOP:
                assert tokens[-1] in params.stop_token_ids or tokens[-1] in (510, 509)
                assert len(tokens) > params.min_tokens
            else:
                assert finish is FinishReason.CANCELLED and was_cancelled


@pytest.mark.parametrize(
    ("setup", "num_requests"),
    [(SETUPS[0], 30), *(pytest.param(setup, 60, marks=pytest.mark.slow) for setup in SETUPS)],
    ids=lambda value: value["drafter"] if isinstance(value, dict) else str(value),
)
def test_random_requests_through_the_step_loop(random_model, setup, num_requests):
    """Arrivals, steps and cancellations in random order; a cancelled request is out within the call."""
    rng = random.Random(str(setup))
    core, ledger = built(random_model, setup).core, Ledger()
    requests, cancelled, running = [], set(), []
    while len(requests) < num_requests or not core.is_idle:
        running = [request for request in running if not ledger.is_done(request)]
        if len(requests) < num_requests and rng.random() < 0.5:
            request = random_request(rng, len(requests), random_model.config.vocab_size)
            core.add(request, ledger.deliver)
            requests.append(request)
            running.append(request)
        if running and rng.random() < 0.08:
            victim = rng.choice((running[-1], rng.choice(running)))
            core.cancel(victim.request_id)
            cancelled.add(victim.request_id)
            assert ledger.is_done(victim)
        core.step()
        core.scheduler.check()
    for request in requests:
        ledger.check(request, request.request_id in cancelled)
    stats = core.stats()
    assert stats.num_running == stats.num_waiting == 0
    assert stats.pages_used == {"full": 0, "sliding": 0}
    assert sum(map(len, ledger.tokens.values())) <= stats.num_generated_tokens
    assert stats.num_preemptions > 0 and stats.num_cached_tokens > 0 and cancelled
    finishes = set(ledger.finish.values())
    assert finishes == {FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED}


@pytest.mark.parametrize("num_requests", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_random_requests_through_the_engines_thread(random_model, num_requests):
    """Submitted and cancelled from three threads at once, some right after they are submitted."""
    info = ModelInfo(name="random", context=CONTEXT, vocab_size=512, eos_ids=(510, 509), drafter="eagle3")
    engine = Engine(built(random_model, SETUPS[0]), None, info)
    ledger, requests, cancelled = Ledger(), [], set()
    ended = threading.Semaphore(0)

    def deliver(event):
        ledger.deliver(event)
        if event.finish is not None:
            ended.release()

    def client(number):
        rng = random.Random(number)
        for index in range(num_requests // 3):
            request = random_request(rng, f"{number}-{index}", 512)
            requests.append(request)
            if rng.random() < 0.3:
                cancelled.add(request.request_id)
            engine.submit(request, deliver)
            if request.request_id in cancelled:
                threading.Event().wait(rng.choice((0, 0, 0.01, 0.1)))
                engine.cancel(request.request_id)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for request in requests:
        for _ in range(request.params.n):
            assert ended.acquire(timeout=60), "a choice never ended"
    stats = engine.stats()
    engine.close()
    assert len(requests) == num_requests
    for request in requests:
        ledger.check(request, request.request_id in cancelled)
    assert stats.num_running == stats.num_waiting == 0
    assert stats.pages_used == {"full": 0, "sliding": 0}
    assert FinishReason.CANCELLED in ledger.finish.values()
