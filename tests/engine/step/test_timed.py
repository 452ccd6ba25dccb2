"""Clocks around the stages of a round."""

import pytest
from tests.engine.support.exactness import build

from eyas.base.types import Request, SamplingParams
from eyas.engine.step.runner import PROMPT_STAGES
from eyas.engine.step.timed import timed_stages


@pytest.mark.parametrize(
    ("drafter", "drafts"), [("ngram", {"ngram"}), ("eagle3", {"catch up", "chain"}), ("none", set())]
)
def test_every_stage_is_timed_while_it_lasts(random_model, drafter, drafts):
    core = build(random_model, drafter=drafter, draft_tokens=2, concurrency=1)
    own = core.runner.stages
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    core.add(Request(request_id="r", prompt_ids=(5, 6) * 8, params=params), lambda event: None)
    with timed_stages(core.runner) as timed:
        while not core.is_idle:
            core.step()
    totals = timed.totals()
    assert totals.keys() == {"verify", "finish", *PROMPT_STAGES} | drafts and all(ms > 0 for _, ms in totals.values())
    assert [totals.pop(name)[0] for name in PROMPT_STAGES] == [1, 1]
    assert len({count for count, _ in totals.values()}) == 1
    assert core.runner.stages is own and getattr(core.runner.drafter, "stages", own) is own
