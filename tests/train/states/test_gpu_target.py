"""States by a GPU's kernels: near those of a CPU in fp32, whole or in chunks the same bits, beside a plain teacher."""

from dataclasses import replace

import pytest
import torch
from tests.train.support.batches import batch_of, random_documents

from eyas.model.checkpoints.device_layout import is_packed
from eyas.model.making.make import make_target
from eyas.model.making.presets import PRESETS
from eyas.train.states.opening import find_target, open_target
from eyas.train.states.target import TargetStates

pytestmark = pytest.mark.gpu
SHAPE = replace(PRESETS["tiny"], hidden_size=64, num_heads=8, num_kv_heads=1, head_dim=64, num_experts=16)
TAPS = (2, 4, 5)


def test_states_of_kernels(tmp_path):
    folder = str(make_target(SHAPE, tmp_path / "target", seed=1))
    of_gpu, of_cpu = (open_target(find_target(folder, device=name), taps=TAPS, longest=300) for name in ("cuda", "cpu"))
    weights, teacher = of_gpu._target.weights, of_gpu.teacher
    assert is_packed(weights) and type(teacher.lm_head_VH) is torch.Tensor
    assert torch.equal(teacher.lm_head_VH.cpu().float(), of_cpu.teacher.lm_head_VH)
    batch = batch_of(random_documents(SHAPE.vocab_size, (200, 7, 64)))
    found, expected = of_gpu.states(batch), of_cpu.states(batch)
    for ours, theirs in zip(found[:2], expected[:2], strict=True):
        assert ours.dtype == torch.bfloat16 and ours.is_cuda
        likeness = torch.nn.functional.cosine_similarity(ours.cpu().float(), theirs, dim=1)
        assert likeness.median() > 0.995
        assert (likeness > 0.98).float().mean() > 0.85  # of the others, rounding has flipped an expert near a tie
    in_chunks = TargetStates(
        SHAPE, weights, teacher, taps=TAPS, longest=300, fingerprint=of_gpu.fingerprint, chunk_rows=64
    ).states(batch)
    assert torch.equal(found.taps_TC, in_chunks.taps_TC) and torch.equal(found.last_TH, in_chunks.last_TH)
