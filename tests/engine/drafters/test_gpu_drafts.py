"""A head's drafts on a GPU against those of plain operations in fp32 on a CPU."""

import random

import pytest

from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.local import load_model

pytestmark = pytest.mark.gpu

DRAFTS = 7
NUM_PROMPTS = 64


def first_drafts(device):
    """Of each prompt of a few random tokens: the token drawn behind it, and two drafts behind that."""
    model = load_model(EngineConfig(model="demo", device=device))
    core = model.build(drafter="eagle3", draft_tokens=DRAFTS, concurrency=1, context=512).core
    rng, drafts = random.Random(0), []
    for number in range(NUM_PROMPTS):
        events = []
        prompt = tuple(rng.randrange(200) for _ in range(rng.randint(1, DRAFTS - 1)))
        params = SamplingParams(temperature=0, max_tokens=DRAFTS + 3, ignore_eos=True)
        core.add(Request(request_id=str(number), prompt_ids=prompt, params=params), events.append)
        while not core.is_idle:
            core.step()
            if len(events) == 2:  # the first token and the first round; a budget for less would cut its drafts
                core.cancel(str(number))
        drafts.append((events[0].token_ids, events[1].round.draft_ids[:2]))
    return drafts[1:]  # on a CPU the very first pass of a head has one row


def test_drafts_behind_prompts_shorter_than_the_rows_of_a_pass():
    """The head takes in as many rows as the last round may have committed: here some lie before the start."""
    pairs = zip(first_drafts("cuda"), first_drafts("cpu"), strict=True)
    common = [(ours, theirs) for (ours_first, ours), (theirs_first, theirs) in pairs if ours_first == theirs_first]
    same = sum(ours == theirs for ours, theirs in common)
    print(f"\n{same} of {len(common)} pairs of drafts are the same")
    assert len(common) > 0.9 * (NUM_PROMPTS - 1) and same > 0.8 * len(common)
