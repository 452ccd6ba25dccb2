"""Compiles the kernels of training at the shapes of a head of gpt-oss for Hopper: a line for each, with its faults."""

import torch
import triton
from tests.kernels.support.hazards import overwritten_operands
from tests.kernels.support.offline import SHARED_BYTES, sources
from triton.backends.compiler import GPUTarget

from eyas.kernels.training.attention import Begun, RowList, attention_backward, attention_forward
from eyas.kernels.training.loss import TeacherRows, cell_losses, row_stats
from eyas.kernels.training.rows import norm_backward, norm_forward, rotated, swiglu_backward, swiglu_forward

ARCH, ROWS, GROUPS, QUERIES, DIM = 90, 64, 8, 8, 64


def bf16(*shape):
    return torch.empty(shape, dtype=torch.bfloat16)


def attention():
    keys, own, q = bf16(ROWS, GROUPS, DIM), bf16(6, ROWS, GROUPS, DIM), bf16(ROWS, GROUPS, QUERIES, DIM)
    lse, sums = torch.empty(ROWS, GROUPS, QUERIES), torch.empty(keys.shape)
    rows = RowList(torch.arange(ROWS), torch.zeros(ROWS, dtype=torch.int64))
    attention_forward(q, keys, keys, rows, own, own, Begun(q, lse))
    attention_backward(
        q, q, q, lse, keys, keys, sums, sums, rows, own, own, first_key=0, last_key=ROWS, begun_NGQD=q
    )  # fmt: skip


def other():
    x, weight, wide = bf16(ROWS, 2880), torch.empty(2880), bf16(ROWS, 17280)
    _, factor = norm_forward(x, weight, 1e-5)
    norm_backward(x, x, factor, weight)
    swiglu_backward(swiglu_forward(wide, wide), wide, wide)
    rotated(rotated(bf16(ROWS, 64, DIM), torch.empty(ROWS, DIM // 2), torch.empty(ROWS, DIM // 2)), factor, factor)
    logits, floats, ints = torch.empty(ROWS, 32000), torch.empty(ROWS), torch.arange(ROWS)
    row_stats(logits)
    row_stats(torch.empty(1, 4544).expand(ROWS, 4544))  # the last block of the full vocabulary
    for kind in ("kl", "tv", "alpha", "lambda", "hard"):
        teacher = None if kind == "hard" else TeacherRows(logits, floats, floats)
        cell_losses(
            kind, logits, floats, ints, floats, teacher, ints, kl_scale=1.0, kl_decay=3.0, dtype=torch.bfloat16
        )  # fmt: skip


def main():
    for name, source, options in [*sources(attention), *sources(other)]:
        compiled = triton.compile(source, target=GPUTarget("cuda", ARCH, 32), options=options)
        ptx, sass = compiled.asm["ptx"], compiled.asm["sass"]
        kinds = [kind for kind in ("wgmma.mma", "mma.sync") if kind in ptx]
        faults = ["spills"] if " STL" in sass else []
        faults += ["race"] if overwritten_operands(sass) else []
        faults += ["shared"] if compiled.metadata.shared > SHARED_BYTES[ARCH] else []
        print(name, *kinds, *faults)


if __name__ == "__main__":
    main()
