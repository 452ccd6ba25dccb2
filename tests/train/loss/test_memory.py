"""Memory of the loss alone, by the storages that its operations make: flat in rows, but for O(1) numbers of each.

Counted beyond inputs, returned gradients and 128 bytes a row. A loss that keeps one tile, and autograd, fail the check.
"""

from typing import NamedTuple

import pytest
import torch
from torch import nn

from eyas.model.live_bytes import LiveBytes
from eyas.train.heads.base import Readout
from eyas.train.loss.kinds import LossSettings
from eyas.train.loss.teacher import DraftTeacher
from eyas.train.loss.tiles import TiledLoss, normalisers
from eyas.train.types import Cells, States, Teacher

BYTES_OF_ROW = 128
DEPTHS = 4


class Sizes(NamedTuple):
    hidden: int
    draft: int
    vocab: int
    tile: int


SMALL, DEMO = Sizes(16, 128, 256, 64), Sizes(64, 2048, 8192, 512)


class Pass:
    def __init__(self, num_rows, hidden):
        generator = torch.Generator().manual_seed(0)
        self.rows_R = torch.arange(num_rows)
        self.outputs = [torch.randn(num_rows, hidden, generator=generator) for _ in range(DEPTHS)]
        self.cells = [Cells(self.rows_R, self.rows_R + 1 + j, 0.8**j) for j in range(DEPTHS)]


def beyond(sizes, num_rows, kind, loss_class=TiledLoss):
    """Peak and retained bytes of a loss over rows, beyond inputs, returned gradients and 128 bytes a row."""
    hidden, draft, vocab, tile = sizes
    one = Pass(num_rows, hidden)
    generator = torch.Generator().manual_seed(1)
    teacher = Teacher(torch.empty(0), torch.randn(vocab, hidden, generator=generator))
    states = States(torch.empty(num_rows + DEPTHS, 0), torch.randn(num_rows + DEPTHS, hidden, generator=generator))
    norm, head = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.randn(draft, hidden, generator=generator))
    norm.grad, head.grad = torch.zeros_like(norm), torch.zeros_like(head)
    readout = Readout(norm, head, 1e-5, torch.arange(0, vocab, vocab // draft)[:draft])
    loss = loss_class(readout, teacher, LossSettings(kind=kind), tile=tile)
    given = [*one.outputs, one.rows_R, *(x.targets_N for x in one.cells), *states[:2], *teacher]
    given += [norm, head, norm.grad, head.grad, readout.target_ids_V, loss._teacher._draft_VH]
    with LiveBytes(*given) as bytes_:
        ready = loss.prepare(one.cells, states)
        result = loss(one, ready, states, normalisers(ready.trained_J, num_rows))
    allowed = num_rows * (BYTES_OF_ROW + DEPTHS * hidden * 4)
    assert len(result[1]) == DEPTHS and result[1][0].any()
    return bytes_.peak - allowed, bytes_.live - allowed


def is_flat(sizes, few, many, kind="kl", loss_class=TiledLoss):
    pairs = zip(beyond(sizes, few, kind, loss_class), beyond(sizes, many, kind, loss_class), strict=True)
    return all(more <= max(0, less) for less, more in pairs)


class KeepsATile(TiledLoss):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._teacher = Keeping(self._teacher)


class Keeping:
    """A teacher that keeps the tiles it makes."""

    def __init__(self, teacher: DraftTeacher):
        self._all, self._draft_VH = teacher, teacher._draft_VH
        self.taught = teacher.taught
        self.kept = []

    def tile(self, *args):
        self.kept.append(self._all.tile(*args))
        return self.kept[-1]


class Autograd(TiledLoss):
    """All logits at once, and autograd."""

    def __call__(self, one, prepared, states, normalisers_J):
        norm, head, eps, ids = self.readout
        outputs = [x.clone().requires_grad_() for x in one.outputs]
        target = states.last_TH @ self._teacher._full_VH.T
        total = 0
        for output, cells in zip(outputs, one.cells, strict=True):
            logits = nn.functional.rms_norm(output, (len(norm),), norm, eps) @ head.T
            p = target[cells.targets_N][:, ids].softmax(-1)
            total = total - cells.weight * (p * logits.log_softmax(-1)).sum(-1).mean()
        total.backward()
        return total.detach(), [x.grad for x in outputs]


@pytest.mark.parametrize("kind", ["kl", "lk", "tv", "hard"])
def test_memory_does_not_grow_with_rows(kind):
    assert is_flat(SMALL, 256, 1536, kind)


@pytest.mark.parametrize("loss_class", [KeepsATile, Autograd])
def test_the_check_fails_where_tiles_are_kept(loss_class):
    assert not is_flat(SMALL, 256, 1536, loss_class=loss_class)


@pytest.mark.slow
def test_memory_does_not_grow_from_4k_to_64k_rows_of_the_demo_models_size():
    assert is_flat(DEMO, 4096, 65536)
    assert not is_flat(DEMO, 4096, 8192, loss_class=KeepsATile)
