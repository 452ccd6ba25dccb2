"""Batches of given texts: ids, generated runs, segments."""

import torch

from eyas.train.types import Batch


def batch_of_texts(texts):
    """Return a batch of (ids, runs, segments) a document."""
    ids, runs, segments = ([torch.as_tensor(part[i]) for part in texts] for i in range(3))
    sizes = [len(part) for part in ids]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return Batch(
        ids_T=torch.cat(ids).long(),
        runs_T=torch.cat(runs).long(),
        segments_T=torch.cat(segments).to(torch.uint8),
        documents_T=torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)),
        positions_T=torch.cat([torch.arange(size) for size in sizes]),
        starts=tuple(starts),
        sources=tuple(f"text {i}" for i in range(len(sizes))),
    )
