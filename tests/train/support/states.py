"""Heads of checkpoints as trainable ones, and hidden states of a target from whole sequences, for tests."""

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from eyas.kernels.reference.norm import inverse_rms
from eyas.kernels.reference.roles import PROMPT_OPS, PROMPT_TILE
from eyas.model.batch import PageTables, RowBatch
from eyas.model.checkpoints.eagle3 import inspect_head
from eyas.model.networks.gpt_oss import GptOss
from eyas.train.heads.eagle3 import Eagle3TrainableHead
from eyas.train.types import Batch, States, Teacher

PAGE_SIZE = 16


class PlainStates:
    """Hidden states of a target of ours, by the operations of prompt rows, a document at a time."""

    def __init__(self, config, weights, taps):
        self.config, self.taps = config, taps
        self.teacher = Teacher(weights.embed_VH, weights.lm_head_VH)
        self.model = GptOss(config, weights, max_positions=4096, taps=taps, expert_cache_bytes=1 << 30)
        self.norm_H = weights.norm_H

    def states(self, batch):
        taps, last = [], []
        for low, high in zip(batch.starts, batch.starts[1:], strict=False):
            size = -(-(high - low) // PROMPT_TILE) * PROMPT_TILE
            ids = F.pad(batch.ids_T[low:high], (0, size - (high - low)))[None]
            positions = torch.arange(size)[None]
            pages = -(-size // PAGE_SIZE)
            table = torch.arange(1, pages + 1)[None]
            rows = RowBatch(
                tokens_SR=ids,
                positions_SR=positions,
                live_SR=positions < high - low,
                tables=PageTables(table, table),
                max_length=size,
                ops=PROMPT_OPS,
            )
            output = self.model.forward(rows, self.model.new_cache(pages + 1, pages + 1, PAGE_SIZE))
            normed = output.normed.rows_TH * inverse_rms(output.normed, self.config.rms_norm_eps)
            taps.append(output.taps_TC[: high - low])
            last.append(normed[: high - low].to(self.model.dtype))
        return States(torch.cat(taps), torch.cat(last))


def trained_head(folder, target, num_depths, dtype=torch.float32):
    """Read a checkpoint of a head as it lies, whatever its form, for training."""
    config, _, _ = inspect_head(folder, target)
    tensors = load_file(folder / "model.safetensors")
    ids = tensors.pop("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
    ids = ids + torch.arange(config.draft_vocab_size)
    tensors.pop("t2d", None)
    tensors.pop("embed_tokens.weight", None)
    head = Eagle3TrainableHead(config, ids, num_depths=num_depths)
    head.load_state_dict({name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()})
    return head.to(dtype)


def batch_of(texts):
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
