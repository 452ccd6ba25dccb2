"""Memory of a whole step: what a token costs beyond its states is keys, values and their gradients at depth 0."""

import pytest
import torch
from tests.support.training import head_config, new_head, packed, states_for

from eyas.model.live_bytes import LiveBytes
from eyas.train.heads.eagle3_making import activation_bytes
from eyas.train.loss.kinds import LossSettings
from eyas.train.loss.step import accumulate, prepare
from eyas.train.loss.tiles import TiledLoss, normalisers

ROWS = 32
OTHER_BYTES = 160  # positions, labels, log-sum-exps, numbers of rows


def peak_of_step(num_documents, *, rows_of_pass):
    config = head_config()
    batch = packed([32] * num_documents, given=0)
    states, teacher = states_for(config, batch, dtype=torch.float32)
    head = new_head(config, num_depths=4, dtype=torch.float32, rows_of_pass=rows_of_pass, rows_of_keys=ROWS)
    for parameter in head.parameters():
        parameter.grad = torch.zeros_like(parameter)
    loss = TiledLoss(head.readout, teacher, LossSettings(), tile=ROWS)
    tensors = (batch.ids_T, batch.runs_T, batch.documents_T, batch.positions_T, *states[:2], *teacher)
    given = [
        *tensors,
        loss._teacher._draft_VH,
        *head.buffers(),
        *head.parameters(),
        *(p.grad for p in head.parameters()),
    ]
    with LiveBytes(*(x for x in given if x is not None)) as seen:
        ready = prepare(head, loss, batch, states, rule="loose")
        by = normalisers(ready.trained_J, batch.num_tokens)
        accumulate(head, loss, batch, states, teacher, ready, normalisers_J=by, rule="loose", decay=0.8)
    return seen.peak


def bytes_of_token(rows_of_pass):
    few, many = 4, 24
    grown = peak_of_step(many, rows_of_pass=rows_of_pass) - peak_of_step(few, rows_of_pass=rows_of_pass)
    return grown / (32 * (many - few))


@pytest.mark.slow
def test_a_token_of_a_longer_batch_costs_its_keys_and_values_alone():
    config = head_config()
    keys_values_and_gradients = 4 * config.num_kv_heads * config.head_dim * 4
    assert bytes_of_token(ROWS) <= keys_values_and_gradients + OTHER_BYTES
    assert bytes_of_token(10_000) > 5 * (keys_values_and_gradients + OTHER_BYTES)  # one pass for all rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_estimate_of_a_pass_is_an_upper_bound_and_close(dtype):
    sizes = {"hidden_size": 64, "target_hidden_size": 64, "intermediate_size": 256, "num_heads": 4, "head_dim": 32}
    config = head_config(**sizes)
    head = new_head(config, num_depths=7, dtype=torch.float32)
    for parameter in head.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def peak_and_estimate(num_documents):
        batch = packed([64] * num_documents, given=0)
        states, teacher = states_for(config, batch, dtype=dtype)
        tensors = (batch.ids_T, batch.runs_T, batch.documents_T, batch.positions_T, *states[:2], *teacher)
        weights = (head.target_ids_V, *head.parameters(), *(p.grad for p in head.parameters()))
        with LiveBytes(*tensors, *weights) as seen:
            for one in head.passes(batch, states, teacher, rule="loose"):
                one.backward([torch.ones_like(x) for x in one.outputs])
        rows, itemsize = len(one.rows_R), dtype.itemsize
        estimate = activation_bytes(config, num_rows=rows, num_tokens=batch.num_tokens, num_depths=7, itemsize=itemsize)
        return torch.tensor([seen.peak, estimate])

    peak, estimate = (peak_and_estimate(6) - peak_and_estimate(2)).tolist()
    assert peak <= estimate <= 1.3 * peak


def test_a_pass_that_recomputes_keeps_little_and_changes_no_bit():
    config = head_config(hidden_size=32, target_hidden_size=32, intermediate_size=128)
    batch = packed([32] * 6, given=0)
    states, teacher = states_for(config, batch, dtype=torch.float32)
    peaks, gradients = [], []
    for recomputes in (False, True):
        head = new_head(config, num_depths=6, dtype=torch.float32)
        head.recomputes = recomputes
        with LiveBytes(*head.parameters()) as seen:
            for one in head.passes(batch, states, teacher, rule="loose"):
                one.backward([torch.ones_like(x) for x in one.outputs])
        peaks.append(seen.peak)
        gradients.append([p.grad for p in head.parameters() if p.grad is not None])
    assert peaks[1] < 0.5 * peaks[0]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
