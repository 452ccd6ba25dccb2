"""Batches of random documents."""

import numpy as np
import torch

from eyas.train.types import Batch, Document


def batch_of(documents):
    """Pack lists of ids; all of them count as generated."""
    ids = torch.tensor([token for document in documents for token in document], dtype=torch.int64)
    lengths = torch.tensor([len(document) for document in documents])
    starts = (0, *lengths.cumsum(0).tolist())
    return Batch(
        ids_T=ids,
        runs_T=torch.zeros_like(ids),
        segments_T=torch.ones_like(ids, dtype=torch.uint8),
        documents_T=torch.arange(len(documents)).repeat_interleave(lengths),
        positions_T=torch.cat([torch.arange(length) for length in lengths.tolist()]),
        starts=starts,
        sources=tuple(f"chats.jsonl:{number + 1}, turn 1" for number in range(len(documents))),
    )


def document_of(ids, source="chats.jsonl:1, turn 1"):
    ids = np.asarray(ids, np.int32)
    return Document(ids_T=ids, runs_T=np.zeros_like(ids), segments_T=np.ones_like(ids, np.uint8), source=source)


def random_documents(vocab_size, lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]
