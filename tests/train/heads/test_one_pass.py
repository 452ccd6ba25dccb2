"""A head of another kind in one class: P-EAGLE's idea, all depths from one pass with a learned input for each depth.

It knows cells and outputs only, and trains with the same loss and step as EAGLE-3.
"""

import torch
import torch.nn.functional as F
from tests.support.training import head_config, packed, states_for
from torch import nn

from eyas.train.heads.base import WHOLE, HeadPass, Readout, TrainableHead
from eyas.train.heads.registry import HEADS
from eyas.train.heads.rows import cells_of, taught_rows
from eyas.train.loss.kinds import LossSettings
from eyas.train.loss.step import accumulate, prepare
from eyas.train.loss.tiles import TiledLoss, normalisers
from eyas.train.types import Cells


class OnePass(HeadPass):
    def __init__(self, rows_R, outputs, cells):
        self.rows_R, self.cells, self.graph = rows_R, cells, outputs
        self.outputs = [x.detach() for x in outputs]

    def backward(self, grads):
        torch.autograd.backward(self.graph, grads)


class OnePassHead(TrainableHead):
    def __init__(self, config, target_ids_V, *, num_depths):
        super().__init__()
        self.config, self.num_depths, self.target_ids_V = config, num_depths, target_ids_V
        width = len(config.taps) * config.target_hidden_size + config.hidden_size
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.masks = nn.Parameter(torch.randn(num_depths, config.hidden_size))
        self.mlp = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.Parameter(torch.ones(config.hidden_size))
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    @property
    def readout(self):
        return Readout(self.norm, self.lm_head.weight, self.config.rms_norm_eps, self.target_ids_V)

    def cells(self, batch, *, rule, share=WHOLE, decay=1.0):
        rows_R = taught_rows(batch, self.num_depths, rule, share)
        return [Cells(rows_R[x.rows_N], *x[1:]) for x in cells_of(batch, rows_R, self.num_depths, rule, decay)]

    def hidden(self, batch, states, teacher, rows_R):
        both = torch.cat((states.taps_TC[rows_R], teacher.embed_VH[batch.ids_T[rows_R + 1]]), dim=-1)
        fused = self.fc(both)
        return [fused + self.mlp(F.silu(fused + mask)) for mask in self.masks]

    def passes(self, batch, states, teacher, *, rule, share=WHOLE, decay=1.0):
        for rows_R in taught_rows(batch, self.num_depths, rule, share).split(8):
            outputs = self.hidden(batch, states, teacher, rows_R)
            yield OnePass(rows_R, outputs, cells_of(batch, rows_R, self.num_depths, rule, decay))


def test_another_kind_of_head_is_a_class_and_a_line(monkeypatch):
    monkeypatch.setitem(HEADS, "one-pass", OnePassHead)
    torch.manual_seed(0)
    config = head_config()
    head = HEADS["one-pass"](config, torch.arange(0, 37, 2), num_depths=3).double()
    batch = packed((20, 13, 9), given=0.3)
    states, teacher = states_for(config, batch)
    loss = TiledLoss(head.readout, teacher, LossSettings(), tile=6)
    ready = prepare(head, loss, batch, states, rule="loose")
    by = normalisers(ready.trained_J, batch.num_tokens)

    def step():
        head.zero_grad()
        sums = accumulate(head, loss, batch, states, teacher, ready, normalisers_J=by, rule="loose", decay=0.8)
        return sums.loss(by, 0.8)

    found = step()
    gradients = [p.grad.clone() for p in head.parameters()]
    plain = plain_loss(head, batch, states, teacher)
    wanted = torch.autograd.grad(plain, list(head.parameters()))
    torch.testing.assert_close(found, plain.detach(), rtol=0, atol=1e-12)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)

    optimiser = torch.optim.AdamW(head.parameters(), lr=0.02)
    for _ in range(60):
        last = step()
        optimiser.step()
    assert last < 0.5 * found


def plain_loss(head, batch, states, teacher):
    """The mean soft cross entropy of every depth, with all logits at once and autograd."""
    rows = torch.arange(batch.num_tokens - 1)
    hidden = head.hidden(batch, states, teacher, rows)
    target = states.last_TH @ teacher.lm_head_VH.T
    best_in = torch.isin(target.argmax(-1), head.target_ids_V)
    p = target[:, head.target_ids_V].softmax(-1)
    total = 0
    for depth, cells in enumerate(head.cells(batch, rule="loose")):
        kept = best_in[cells.targets_N]
        row, at = cells.rows_N[kept], cells.targets_N[kept]
        normed = F.rms_norm(hidden[depth][row], (head.config.hidden_size,), head.norm, head.config.rms_norm_eps)
        total = total - 0.8**depth * (p[at] * head.lm_head(normed).log_softmax(-1)).sum() / kept.sum()
    return total
