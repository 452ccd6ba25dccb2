"""Launching a step on a GPU: the host waits for nothing, so that the next step is there when the last one ends."""

import random
import warnings
from contextlib import contextmanager

import pytest
import torch
from tests.engine.support.exactness import run

from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.engine.draft_length.choice import FixedDraftLength
from eyas.engine.startup import memory
from eyas.engine.startup.warm_up import warm_up
from eyas.local import load_model

pytestmark = pytest.mark.gpu

WISHES = (
    SamplingParams(max_tokens=24, ignore_eos=True),
    SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, seed=1, logprobs=3),
    SamplingParams(max_tokens=24, ignore_eos=True, logit_bias={7: 2.0, 9: -2.0}, frequency_penalty=0.5),
)


@contextmanager
def waiting_fails():
    """Any call that waits for the device raises RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")  # said once a process
        try:
            torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


@pytest.mark.parametrize("drafter", ["none", "eagle3"])
def test_the_host_waits_for_nothing(drafter, monkeypatch):
    """Prompts in one chunk and in several, beside answers, after a warm-up and a run that compiles for such wishes."""
    monkeypatch.setattr(memory, "LEAST_SCREENED", 0)
    model = load_model(EngineConfig(model="demo", device="cuda"))
    core = model.build(drafter=drafter, draft_tokens=3, concurrency=4, context=1024, busy_chunk_tokens=128).core
    core.draft_length = FixedDraftLength(0 if drafter == "none" else 3)
    warm_up(core)
    launch, num_launched = core._launch, 0

    def strictly(plan):
        nonlocal num_launched
        num_launched += 1
        with waiting_fails():
            launch(plan)

    for number in range(2):
        rng, requests = random.Random(number), []
        for index, num_tokens in enumerate((40, 400, 60, 300, 20, 128)):
            prompt = tuple(rng.randrange(model.config.vocab_size) for _ in range(num_tokens))
            params = WISHES[index % len(WISHES)]
            requests.append(Request(request_id=f"{number}-{index}", prompt_ids=prompt, params=params))
        run(core, requests)
        monkeypatch.setattr(core, "_launch", strictly)
    assert num_launched > 20


def test_waiting_would_be_noticed_and_the_mode_does_not_stay():
    on_device = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="synchronizing"), waiting_fails():
        on_device.sum().item()
    assert torch.cuda.get_sync_debug_mode() == 0 and on_device.sum().item() == 3
