"""The reference head as a trainable one, and hidden states of a target from whole sequences, for tests."""

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from eyas.kernels.reference.norm import inverse_rms
from eyas.kernels.reference.roles import PROMPT_OPS, PROMPT_TILE
from eyas.model.batch import PageTables, RowBatch
from eyas.model.checkpoints.eagle3 import inspect_head
from eyas.model.networks.gpt_oss import GptOss
from eyas.model.networks.rope import rope_table
from eyas.train.heads.base import HeadPass, Readout, Share, TrainableHead
from eyas.train.reference import ReferenceHead, Steps
from eyas.train.types import Batch, Cells, States, Teacher, supervises

PAGE_SIZE = 16


class PlainHead(TrainableHead):
    """All rows of all depths by `train.reference`, without gradients."""

    def __init__(self, head, num_depths):
        super().__init__()
        self.head, self.config, self.num_depths = head, head.config, num_depths

    @property
    def readout(self):
        head = self.head
        return Readout(head.norm.weight, head.lm_head.weight, head.config.rms_norm_eps, head.target_ids_V)

    def run(self, batch, states, teacher, *, rule, share=Share(), decay=1.0):
        num_tokens, head = batch.num_tokens, self.head
        cos, sin = rope_table(self.config.rope, self.config.head_dim, num_tokens + self.num_depths, torch.device("cpu"))
        at = torch.arange(num_tokens)
        mask = (batch.documents_T[:, None] == batch.documents_T[None, :]) & (at[:, None] >= at[None, :])
        hidden, steps = head.fuse(states.taps_TC[None]), Steps([], [])
        done = HeadPass.__new__(PlainPass)
        done.outputs, done.cells = [], []
        for j in range(self.num_depths):
            embedded = teacher.embed_VH[batch.ids_T.roll(-1 - j)][None]
            rope = (cos[j : j + num_tokens].to(hidden.dtype), sin[j : j + num_tokens].to(hidden.dtype))
            hidden = head.step(hidden, embedded, steps, mask[None], rope)
            done.outputs.append(hidden[0])
            hidden = head.recur(hidden)
            rows = at[supervises(batch, at + 1, at + 2 + j, rule) & (at + 2 + j < num_tokens)]
            done.cells.append(Cells(rows, rows + 1 + j, decay**j))
        return done


class PlainPass(HeadPass):
    def backward(self, grads):
        raise NotImplementedError


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


def plain_head(folder, target, num_depths, dtype=torch.float32):
    """Read a checkpoint of a head as it lies, whatever its form."""
    config, _, _ = inspect_head(folder, target)
    tensors = load_file(folder / "model.safetensors")
    ids = tensors.pop("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
    ids = ids + torch.arange(config.draft_vocab_size)
    tensors.pop("t2d", None)
    tensors.pop("embed_tokens.weight", None)
    head = ReferenceHead(config, ids)
    head.load_state_dict({name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()})
    return PlainHead(head.to(dtype), num_depths)


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
