"""Operations by part against those that torch counts in a step, and those of a published shape."""

import pytest
import torch
from tests.support.training import head_config, new_head, packed, states_for
from torch.utils.flop_counter import FlopCounterMode

from eyas.model.making.presets import PRESETS, default_head
from eyas.train.heads.base import WHOLE
from eyas.train.heads.flops import Work, head_flops
from eyas.train.loss.kinds import LossSettings
from eyas.train.loss.step import accumulate, prepare
from eyas.train.loss.tiles import TiledLoss, normalisers


def product_flops(_, a, b, **__):
    return 2 * a[0] * a[1] * b[1]


def test_products_are_those_that_torch_counts():
    """Attention aside: plain blocks compute what lies behind the diagonal, too."""
    config = head_config(vocab_size=400, draft_vocab_size=200, num_heads=2, num_kv_heads=1, intermediate_size=160)
    batch = packed([8, 9], given=0)
    states, teacher = states_for(config, batch, dtype=torch.float32)
    head = new_head(config, dtype=torch.float32)
    loss = TiledLoss(head.readout, teacher, LossSettings())
    in_place = {torch.ops.aten.addmm_: product_flops}  # torch does not count it
    with FlopCounterMode(display=False, custom_mapping=in_place) as counted:
        ready = prepare(head, loss, batch, states, rule="loose")
        by = normalisers(ready.trained_J, batch.num_tokens)
        sums = accumulate(head, loss, batch, states, teacher, ready, normalisers_J=by, rule="loose", decay=0.8)
    rows, cells = len(head.rows(batch, "loose", WHOLE)), int(sums.counted_J.sum())
    work = Work(tokens=17, rows=rows, keys=0, cells=cells, positions=len(ready.taught.positions_S), depths=3)
    parts = head_flops(config, work)
    by_operation = counted.get_flop_counts()["Global"]
    scores = sum(value for key, value in by_operation.items() if "bmm" in str(key))
    products = counted.get_total_flops() - scores
    assert sum(parts.values()) == pytest.approx(products, rel=0.005)


def test_a_head_of_gpt_oss():
    """Per token at 131,072 tokens, all supervised: attention is two thirds."""
    config = default_head(PRESETS["gpt-oss-120b"], draft_vocab_size=32000)
    tokens = 131072
    work = Work(tokens=tokens, rows=tokens, keys=tokens * tokens // 2, cells=7 * tokens, positions=tokens, depths=7)
    parts = {name: value / tokens / 1e9 for name, value in head_flops(config, work).items()}
    assert parts["attention"] == pytest.approx(26.3, rel=0.01)
    assert parts["readout"] == pytest.approx(3.87, rel=0.01)
    assert parts["layer"] == pytest.approx(8.1, rel=0.05)
    assert parts["teacher"] == pytest.approx(1.34, rel=0.01)
