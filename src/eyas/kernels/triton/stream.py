"""The bandwidth of reading device memory once: the limit that decoding is compared with."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from eyas.kernels.layouts.device import device_limits

__all__ = ["read_bandwidth"]

BLOCK = 4096
PROGRAMS = 4  # a multiprocessor
NUM_BYTES = 4 << 30
NUM_READS = 25


@triton.jit
def _read(source_ptr, sums_ptr, num_blocks, BLOCK: tl.constexpr):
    program, step = tl.program_id(0), tl.num_programs(0)
    total = tl.zeros((BLOCK,), tl.int32)
    block = program
    while block < num_blocks:
        total += tl.load(source_ptr + block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
        block += step
    tl.store(sums_ptr + program, tl.sum(total))


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second, the fastest of some reads of up to 4 GiB of random integers, by events of the device."""
    free = torch.cuda.mem_get_info(device)[0]
    num_blocks = min(NUM_BYTES, free // 2) // (4 * BLOCK)
    source = torch.randint(-(1 << 31), (1 << 31) - 1, (num_blocks * BLOCK,), dtype=torch.int32, device=device)
    num_programs = PROGRAMS * device_limits(device).num_sms
    sums = torch.empty(num_programs, dtype=torch.int32, device=device)
    kernel: Any = _read
    seconds = []
    for _ in range(NUM_READS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        kernel[(num_programs,)](source, sums, num_blocks, BLOCK=BLOCK, num_warps=8)
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return source.nbytes / min(seconds)
