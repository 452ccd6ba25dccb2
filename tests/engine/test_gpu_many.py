"""512 conversations at once on a GPU: all are answered, each as if it were alone, and one more waits in the queue."""

import random

import pytest

from eyas.base.settings.config import EngineConfig
from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.engine.startup.load import load_model
from eyas.engine.startup.warm_up import warm_up

pytestmark = pytest.mark.gpu

MOST, COMPARED = 512, 32


def requests_of(model):
    rng = random.Random(7)
    for number in range(MOST + 1):
        prompt = tuple(rng.randrange(model.config.vocab_size) for _ in range(rng.randint(20, 150)))
        params = SamplingParams(max_tokens=rng.randint(30, 60), ignore_eos=True, temperature=1.0, seed=number)
        yield Request(request_id=str(number), prompt_ids=prompt, params=params)


def answers_of(core, requests):
    """Return the tokens of each answer, and the most conversations that ran at once."""
    answers, most, waited = {request.request_id: [] for request in requests}, 0, 0

    def deliver(event):
        assert event.finish in (None, FinishReason.LENGTH), event.error
        answers[event.request_id] += event.token_ids

    for request in requests:
        core.add(request, deliver)
    while not core.is_idle:
        core.step()
        most, waited = max(most, len(core.scheduler.running)), max(waited, len(core.scheduler.waiting))
    return answers, most, waited


@pytest.mark.parametrize("draft_tokens", [0, 3, "auto"])
def test_all_are_answered_as_if_alone(draft_tokens):
    model = load_model(EngineConfig(device="cuda"))
    requests = list(requests_of(model))
    drafter = "none" if draft_tokens == 0 else "eagle3"
    core = model.build(drafter=drafter, draft_tokens=draft_tokens or "auto", concurrency=MOST, context=256).core
    warm_up(core)
    answers, most, waited = answers_of(core, requests)
    assert most == MOST and waited >= 1 and all(answers.values())
    core.scheduler.check()
    assert core.scheduler.full.num_held == core.scheduler.sliding.num_held == 0
    alone = model.build(drafter="none", concurrency=1, context=256).core
    compared = random.Random(draft_tokens).sample(requests, COMPARED)
    expected = answers_of(alone, compared)[0]
    assert {name: answers[name] for name in expected} == expected
