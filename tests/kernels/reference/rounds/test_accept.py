"""The accept rule against a plain loop."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.kernels.reference.rounds.accept import accept

TOKENS = st.integers(0, 3)  # few, so that drafts are often right and stops often drawn


@st.composite
def rounds(draw):
    num_drafts = draw(st.integers(0, 5))
    row = st.fixed_dictionaries(
        {
            "draft": st.lists(TOKENS, min_size=num_drafts, max_size=num_drafts),
            "num_valid": st.integers(0, num_drafts),
            "sampled": st.lists(TOKENS, min_size=num_drafts + 1, max_size=num_drafts + 1),
            "failed": st.lists(st.sampled_from((0, 0, 0, 1, 2)), min_size=num_drafts + 1, max_size=num_drafts + 1),
            "stops": st.lists(st.sampled_from((-1, 2, 3)), min_size=2, max_size=2),
            "remaining": st.integers(0, 8),
            "live": st.booleans(),
        }
    )
    return draw(st.lists(row, min_size=1, max_size=5))


def committed_of(row):
    """(tokens committed, drafts among them, stopped, failure) one token after the other."""
    tokens, accepted = [], 0
    while row["live"] and len(tokens) < row["remaining"]:
        at = len(tokens)
        if row["failed"][at]:
            return tokens, accepted, False, row["failed"][at]
        tokens.append(row["sampled"][at])
        right = at < row["num_valid"] and row["draft"][at] == tokens[-1]
        accepted += right
        if tokens[-1] in row["stops"]:
            return tokens, accepted, True, 0
        if not right:
            break
    return tokens, accepted, False, 0


@given(rounds())
@settings(max_examples=60, deadline=None)
def test_equals_a_plain_loop(rows):
    def column(name, dtype=torch.int64):
        return torch.tensor([row[name] for row in rows], dtype=dtype)

    result = accept(
        column("draft"),
        column("num_valid"),
        column("sampled"),
        column("failed"),
        column("stops"),
        column("remaining"),
        column("live", torch.bool),
    )
    for index, row in enumerate(rows):
        tokens, accepted, stopped, failed = committed_of(row)
        assert result.num_committed_S[index] == len(tokens)
        assert result.num_accepted_S[index] == accepted
        assert result.stopped_S[index] == stopped
        assert result.failed_S[index] == failed
