"""Compiles what prompts and draws launch at a model's shapes, for a GPU that need not be here: a line for each kernel.

`python -m tests.kernels.support.offline 90 128 1024`: the GPU, then numbers of prompt rows. Not in the interpreter, so
tests run it as a process of its own.
"""

import itertools
import re
import subprocess
import sys
import tempfile

import torch
import triton
from tests.kernels.support.hazards import overwritten_operands
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.device import Limits
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.layouts.mxfp4 import PackedExperts
from eyas.kernels.reference.layers.norm import Normed
from eyas.kernels.reference.layers.ops import LayerCache, RopeTable, Rows
from eyas.kernels.reference.rounds.gather import Book
from eyas.kernels.reference.rounds.sample import SamplingRows
from eyas.kernels.triton.prompts import gemm, qkv, tma
from eyas.kernels.triton.prompts.ops import PromptOps
from eyas.kernels.triton.rounds.chain import end_chains
from eyas.kernels.triton.rounds.commit import Ledger, commit
from eyas.kernels.triton.rounds.edits import Edits, Masks
from eyas.kernels.triton.rounds.gather import DeviceGather
from eyas.kernels.triton.rounds.lookup import look_up
from eyas.kernels.triton.rounds.sample import SampleSpace, draw
from eyas.kernels.triton.rounds.screen import ScreenSpace, screen
from eyas.kernels.triton.rounds.synthetic import decide, guess

# Bytes that one block may have (CUDA C++ programming guide, table of compute capabilities).
SHARED_BYTES = {90: 227 << 10, 100: 227 << 10, 120: 99 << 10, 121: 99 << 10}
MAX_STACK = 96  # bytes of a thread in a product: a few addresses, once a tile, where there is no bias
_DTYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32", torch.int64: "*i64", torch.bool: "*i1",
    torch.uint8: "*u8",
}  # fmt: skip
_HIDDEN, _HEADS, _KV_HEADS, _EXPERTS, _INNER = 2880, 64, 8, 128, 2880  # gpt-oss-120b


def sources(run):
    """(name, source, options) of each kernel that `run` launches, once."""
    found = {}

    def record(kernel, *args, grid, warmup, **kwargs):
        names = kernel.arg_names
        values = dict(zip(names, args, strict=False)) | {name: kwargs[name] for name in names if name in kwargs}
        options = {name: value for name, value in kwargs.items() if name not in names}
        constants = {kernel.params[i].name for i in range(len(names)) if kernel.params[i].is_constexpr}
        signature, constexprs, attrs = {}, {}, {}

        def describe(value, path):
            if isinstance(value, tuple):
                parts = [describe(part, (*path, i)) for i, part in enumerate(value)]
                return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
            if value is None or names[path[0]] in constants:
                constexprs[path] = value
                return "constexpr"
            if isinstance(value, TensorDescriptor):
                return f"tensordesc<{_DTYPES[value.base.dtype].removeprefix('*')}{value.block_shape}>"
            if isinstance(value, torch.Tensor):
                attrs[path] = [["tt.divisibility", 16]]
                return _DTYPES[value.dtype]
            if isinstance(value, int) and value % 16 == 0:
                attrs[path] = [["tt.divisibility", 16]]
            return "fp32" if isinstance(value, float) else "i32"

        for i, name in enumerate(names):
            signature[name] = describe(values[name], (i,))
        key = (kernel.__name__, str(signature), str(attrs), str(sorted(constexprs.items())), str(options))
        found[key] = (ASTSource(kernel, signature, constexprs, attrs), options)

    original, JITFunction.run = JITFunction.run, record
    try:
        run()
    finally:
        JITFunction.run = original
    return [(key[0], *source) for key, source in found.items()]


def prompt(num_rows):
    """Launches of a layer over `num_rows` rows, and of a draft head's products."""

    def fake(*shape, dtype=torch.float32):
        return torch.empty(shape, dtype=dtype)

    def matrix(num_features, width, gated=False):
        return BlockedMatrix(fake(num_features // 16, width // 32, 16, 32, dtype=torch.bfloat16), gated)

    def packed(num_features, width):
        words = fake(1, 1, 1, 1, 1, dtype=torch.int32).expand(_EXPERTS, num_features // 16, width // 64, 32, 4)
        return PackedExperts(words, words[..., 0], num_features, width)

    ops, norm, live = PromptOps(), fake(_HIDDEN), fake(1, num_rows, dtype=torch.bool)
    rows = Rows(fake(1, num_rows, dtype=torch.int64), live, fake(1, 100, dtype=torch.int64), num_rows)
    cache, in_fp8 = (
        LayerCache.zeros((100, _KV_HEADS, 16, 64), torch.bfloat16, torch.device("cpu"), in_fp8=fp8)
        for fp8 in (False, True)
    )
    rope = RopeTable(fake(num_rows, 32), fake(num_rows, 32))
    tokens, table = fake(num_rows, dtype=torch.int64), fake(10, _HIDDEN, dtype=torch.bfloat16)
    num_features = (_HEADS + 2 * _KV_HEADS) * 64
    residual, normed = ops.embed(tokens, table, norm)
    for window, kv in itertools.product((None, 128), (cache, in_fp8)):
        attn = ops.attend(
            ops.project(normed, matrix(num_features, _HIDDEN)), rows, kv, rope,
            eps=1e-5, bias_N=fake(num_features), sinks_Q=fake(_HEADS), window=window,
        )  # fmt: skip
    residual, normed = ops.add(attn, matrix(_HIDDEN, _HEADS * 64), norm, residual, norm)
    chosen = ops.router(normed, matrix(_EXPERTS, _HIDDEN), fake(_EXPERTS), 1e-5)
    up_bias = fake(_EXPERTS, 2 * _INNER)
    act = ops.moe_up(normed, chosen, live[0], packed(2 * _INNER, _HIDDEN), up_bias, top_k=4, limit=7.0, eps=1e-5)
    residual, normed = ops.moe_down(
        act, chosen, live[0], packed(_HIDDEN, _INNER), fake(_EXPERTS, _HIDDEN), residual, norm
    )
    ops.logits(normed, matrix(512, _HIDDEN), 1e-5)

    pairs, hidden = ops.pair(tokens, table, norm, residual, norm, 1e-5)
    ops.attend(
        ops.project(pairs, matrix(num_features, 2 * _HIDDEN)), rows, cache, rope,
        eps=1e-5, bias_N=None, sinks_Q=None, window=None, first_key=1,
    )  # fmt: skip
    residual, normed = ops.add(attn, matrix(_HIDDEN, _HEADS * 64), None, hidden, norm)
    assert isinstance(normed, Normed)
    ops.gated(normed, matrix(2 * 17280, _HIDDEN, gated=True), 1e-5)
    ops.linear(attn, matrix(_HIDDEN, _HEADS * 64))


def sampling():
    """Draws from a target's logits and from those of a draft vocabulary, and the commit of a round."""

    def fake(*shape, dtype=torch.int64):
        return torch.empty(shape, dtype=dtype)

    vocab_size, slots, floats = 201088, fake(32), fake(32, dtype=torch.float32)
    settings = SamplingRows(floats, slots, floats, floats, slots, slots, True, True)
    counts = fake(1, dtype=torch.int32).expand(32, vocab_size)
    bias = fake(32, 300, dtype=torch.float32)
    edits = Edits(floats, floats, floats, counts, counts.bool(), fake(32, 300), bias, slots, fake(32, 32), slots)
    masks = Masks(fake(32, vocab_size // 32, dtype=torch.int32), slots)
    space = SampleSpace(1, vocab_size, "cpu", chunk_size=4096)
    logits = torch.empty(32, vocab_size, device="meta")
    live = slots.bool()
    common = {"edits": edits, "num_top_S": slots, "live_T": live, "wanted": fake(1, dtype=torch.int32)}
    draw(logits, slots, slots, settings, space, ancestors_SK=fake(32, 3), **common)
    draw(logits, slots, slots, settings, space, masks=masks, **common)
    few, screened = logits[:8], ScreenSpace(1, vocab_size, "cpu", chunk_size=2048)
    rows, sums = fake(8, _HIDDEN, dtype=torch.bfloat16), fake(8, _HIDDEN // 16, dtype=torch.float32)
    rough = RoughMatrix(BlockedMatrix(fake(1)), fake(1, dtype=torch.float32), 1.0)
    screened.scratch = screened.scratch._replace(peaks_TC=fake(8, screened.num_chunks, dtype=torch.float32))
    screen(few, Normed(rows, sums), 1e-5, rough, slots[:4], slots, live, settings, screened)
    draft_space = SampleSpace(1, 32000, "cpu", chunk_size=4096)
    drafts = logits[:, :32000].contiguous()
    draw(drafts, slots, slots, settings, draft_space, target_ids_V=fake(32000), num_top_S=slots)
    look_up(fake(33, 131072), slots, slots, 7, min_match=2, max_match=5, max_length=131072)
    chances = fake(33, 11, dtype=torch.float32)
    end_chains(fake(7, 32), fake(7, 32, dtype=torch.float32), slots, slots, chances, floats[:9])
    tables = fake(33, 1024), fake(33, 1024)
    book = Book(
        fake(33, 16384), *[slots, live, slots, slots, live, slots], *tables, fake(33, 41, 8640, dtype=torch.bfloat16)
    )
    gather = DeviceGather()
    gather.verified(book, slots, fake(32, 3), slots)
    gather.unseen(book, slots, 4, shift=True)
    gather.chain(book, slots, 3)
    guess(fake(33, 16384), slots, slots, 1, slots)
    decide(logits.view(8, 4, vocab_size), fake(33, 16384).bool(), slots[:8], slots, fake(8, 3), 1e4)
    ledger = Ledger(fake(32, 1024), slots, live, slots, fake(32, 32), counts, fake(32, 8, 8640, dtype=torch.bfloat16))
    commit(ledger, slots, fake(32, 3), slots, fake(32, 4), fake(32, 4), fake(128, 8640, dtype=torch.bfloat16))


def stack_bytes(cubin):
    """Bytes of memory that a thread has for what finds no register."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


def main(arch, *sizes):
    for module in (gemm, qkv, tma):
        module.device_limits = lambda device: Limits(132, SHARED_BYTES[arch], has_wgmma=arch == 90)

    def run():
        sampling()
        for num_rows in sizes:
            prompt(num_rows)
        if arch == 90:
            tma.MIN_ROWS = 0
            prompt(sizes[-1])

    for name, source, options in sources(run):
        compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        ptx = compiled.asm["ptx"]
        kinds = [kind for kind in ("wgmma.mma", "tcgen05.mma", "mma.sync") if kind in ptx]
        sass = compiled.asm["sass"] if arch == 90 else ""
        faults = (["local"] if ".local" in ptx else []) + (["race"] if overwritten_operands(sass) else [])
        # ptxas waits for each product where it cannot keep them in flight (C7510 to C7515, in a log that Triton drops).
        # Attention has too few registers, so that two programs share a multiprocessor.
        serial = sass.count("WARPGROUP.DEPBAR") > ptx.count("wgmma.wait_group") and name != "_flash_kernel"
        faults += ["serial"] if serial else []
        faults += ["spill"] if kinds and arch == 90 and stack_bytes(compiled.asm["cubin"]) > MAX_STACK else []
        print(name, f"shared={compiled.metadata.shared}", *kinds, *faults)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
