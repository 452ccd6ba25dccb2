"""The evaluation of texts that the engine wrote, against what the engine counted while it wrote them."""

from pathlib import Path

import pytest
from tests.train.support.texts import batch_of_texts

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.bench.engine.drive import run_requests
from eyas.bench.engine.rounds import Acceptance, ContentMarker, count_content, count_rounds
from eyas.bench.prompts import read_prompts
from eyas.engine.startup.load import load_engine_parts
from eyas.model.checkpoints.eagle3 import inspect_head
from eyas.train.evaluation.evaluate import evaluate
from eyas.train.heads.eagle3_making import head_from_checkpoint
from eyas.train.states.opening import find_target, open_target
from eyas.train.types import Segment

HELD_OUT = Path(__file__).parents[2] / "assets" / "demo_heldout.jsonl"
DRAFTS = 4


def written_by_engine(temperature, limit, max_tokens=256):
    """Answers to held-out prompts as a batch each, and the engine's counts over content and over all tokens."""
    loaded = load_engine_parts(
        EngineConfig(model="demo", draft="auto", draft_tokens=DRAFTS, context=1024, concurrency=8, device="cpu")
    )
    codec = loaded.tokenizer
    prompts, _ = read_prompts(HELD_OUT, codec, limit=limit)
    params = SamplingParams(temperature=temperature, seed=0, max_tokens=max_tokens)
    requests = [Request(request_id=str(i), prompt_ids=prompt, params=params) for i, prompt in enumerate(prompts)]
    run = run_requests(loaded.built.core, requests, batch=8)
    content, everything, batches = Acceptance(), Acceptance(), []
    for prompt, events in zip(prompts, run.events.values(), strict=True):
        content.merge(count_content(events, codec))
        everything.merge(count_rounds(events))
        answer = [token for event in events for token in event.token_ids]
        segments = [Segment.FINAL if mark else Segment.HEADER for mark in ContentMarker(codec).mark(answer)]
        given = len(prompt)
        text = ([*prompt, *answer], [-1] * given + [0] * len(answer), [Segment.GIVEN] * given + segments)
        batches.append(batch_of_texts([text]))
    return batches, content, everything


def evaluated(batches, temperature):
    target = find_target("demo", device="cpu")
    folder = DEMO / OWN_HEAD
    taps = inspect_head(folder, target.config)[0].taps
    longest = max(batch.num_tokens for batch in batches)
    source = open_target(target, taps=taps, longest=longest)
    head = head_from_checkpoint(folder, taps, target.config, source.teacher, num_depths=DRAFTS)
    return evaluate(head, source, batches, temperature=temperature)


def describe(found, content, everything):
    shares = [content.accepted[i] / content.reached[i] for i in range(1, DRAFTS + 1)]
    print(
        f"engine {content.length:.4f} over content ({content.num_rounds} rounds), {everything.length:.4f} over all; "
        f"evaluation {found.content.length:.4f} ({found.content.rounds:.1f}), {found.all_tokens.length:.4f}\n"
        f"if reached: {[round(x, 4) for x in shares]} and {[round(x, 4) for x in found.accepted_if_reached]}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("limit", [3, 40])
def test_greedy_text(limit):
    """Without chance the counts are the same, so no number of texts has to even anything out."""
    batches, content, everything = written_by_engine(0.0, limit)
    found = evaluated(batches, None).at("text", DRAFTS)
    describe(found, content, everything)
    assert found.content.tokens == pytest.approx(content.num_tokens, rel=0.005)
    assert found.content.length == pytest.approx(content.length, rel=0.005)
    assert found.all_tokens.length == pytest.approx(everything.length, rel=0.005)


@pytest.mark.parametrize(
    ("limit", "error"),
    [pytest.param(100, 0.05, marks=pytest.mark.slow), pytest.param(304, 0.03, marks=pytest.mark.soak)],
)
def test_sampled_text(limit, error):
    batches, content, everything = written_by_engine(1.0, limit)
    found = evaluated(batches, 1.0).at("sampled", DRAFTS)
    describe(found, content, everything)
    assert found.content.length == pytest.approx(content.length, rel=error)
    assert found.all_tokens.length == pytest.approx(everything.length, rel=error)
