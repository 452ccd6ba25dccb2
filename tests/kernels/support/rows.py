"""Sampling settings for tests, and launches whose programs run beside one another without a GPU."""

import multiprocessing

import torch
import triton

from eyas.kernels.reference.rounds.sample import SamplingRows

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"


def rows_of(num_rows, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seeds=False):
    def full(value, dtype=torch.int64):
        return torch.full((num_rows,), value, dtype=dtype, device=DEVICE)

    return SamplingRows(
        temperature=full(temperature, torch.float32),
        top_k=full(top_k),
        top_p=full(top_p, torch.float32),
        min_p=full(min_p, torch.float32),
        seed=torch.arange(num_rows, device=DEVICE) * 7919 if seeds else full(0),
        choice=full(0),
        any_random=temperature > 0,
        any_filter=top_k > 0 or top_p < 1 or min_p > 0,
    )


def shared_launch(space, launch, logits, slots, length, rows):
    """`launch` with each program of the grid in a process of its own, where Triton interprets them one by one."""
    if DEVICE == "cuda":
        return launch(logits, slots, length, rows, space)
    for tensor in (*space.scratch, *space.drawn):
        tensor.share_memory_()
    run_beside(len(logits) * space.num_chunks, launch, logits, slots, length, rows, space)
    return space.drawn


def run_beside(num_programs, launch, *arguments):
    """Interpret each program of a launch in a process of its own: what it writes must be in shared memory."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_run_one, args=(program, launch, arguments)) for program in range(num_programs)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert all(process.exitcode == 0 for process in processes)


def _run_one(program, launch, arguments):
    """In a child: the grid is one program, which takes itself for `program`."""
    from triton.runtime import interpreter

    builder, executor = interpreter.interpreter_builder, interpreter.GridExecutor
    set_index, set_dimensions, prepare = builder.set_grid_idx, builder.set_grid_dim, executor.__init__
    builder.set_grid_idx = lambda x, y, z: set_index(program, 0, 0)
    builder.set_grid_dim = lambda x, y, z: set_dimensions(program + 1, 1, 1)
    executor.__init__ = lambda self, fn, names, grid, hooks: prepare(self, fn, names, (1,), hooks)
    launch(*arguments)
