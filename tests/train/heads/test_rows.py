"""Cells and rows by plain loops over a packed batch, and the counts that both rules must give."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.training import head_config, new_head, packed, states_for

from eyas.train.heads.base import Share
from eyas.train.heads.rows import cells_of, taught_rows


def plain_cells(batch, depth, rule):
    """Every (row, target position) of a depth: x_{r+1} is known, x_{r+2+depth} predicted, all of one document."""
    runs = batch.runs_T.tolist()
    found = []
    for start, stop in itertools.pairwise(batch.starts):
        for row in range(start, stop):
            known, predicted = row + 1, row + 2 + depth
            if predicted < stop and runs[predicted] >= 0 and (rule == "loose" or runs[known] == runs[predicted]):
                found.append((row, predicted - 1))
    return found


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    given_share=st.sampled_from([0.0, 0.3, 0.8]),
    rule=st.sampled_from(["loose", "faithful"]),
    shares=st.integers(1, 4),
)
def test_cells_are_those_of_a_plain_loop_and_shares_hold_each_once(lengths, seed, given_share, rule, shares):
    batch = packed(lengths, seed=seed, given=given_share)
    head = new_head(head_config(), num_depths=4)
    parts = [head.cells(batch, rule=rule, share=Share(i, shares), decay=0.5) for i in range(shares)]
    for depth, cells in enumerate(zip(*parts, strict=True)):
        pairs = [p for one in cells for p in zip(one.rows_N.tolist(), one.targets_N.tolist(), strict=True)]
        assert sorted(pairs) == plain_cells(batch, depth, rule)
        for one in cells:
            assert one.weight == 0.5**depth
            assert one.targets_N.tolist() == sorted(one.targets_N.tolist())


def test_counts_of_both_rules_for_one_run_after_a_prompt():
    """Loose teaches each of n generated tokens once a depth; faithful max(0, n - 1 - j) of them."""
    prompt, n = 10, 6
    batch = packed((prompt + n,), given=0)
    batch.runs_T[:prompt] = -1
    for rule, counts in (("loose", [n] * 7), ("faithful", [max(0, n - 1 - j) for j in range(7)])):
        rows = taught_rows(batch, 7, rule, Share())
        assert [len(x.rows_N) for x in cells_of(batch, rows, 7, rule, 1.0)] == counts


@pytest.mark.parametrize("rows_of_pass", [1, 4, 100])
def test_passes_hold_the_rows_that_are_taught_and_no_others(rows_of_pass):
    batch = packed((11, 3, 8), given=0.6, seed=3)
    config = head_config()
    states, teacher = states_for(config, batch)
    head = new_head(config, rows_of_pass=rows_of_pass)
    cells = head.cells(batch, rule="loose")
    wanted = sorted({row for one in cells for row in one.rows_N.tolist()})
    assert len(wanted) < batch.num_tokens - 6
    with torch.no_grad():
        passes = list(head.passes(batch, states, teacher, rule="loose"))
    assert torch.cat([one.rows_R for one in passes]).tolist() == wanted
    assert all(len(x) == len(one.rows_R) for one in passes for x in one.outputs)
    for depth, all_cells in enumerate(cells):
        rows = torch.cat([one.rows_R[one.cells[depth].rows_N] for one in passes])
        assert torch.equal(rows, all_cells.rows_N)
        assert torch.equal(torch.cat([one.cells[depth].targets_N for one in passes]), all_cells.targets_N)
