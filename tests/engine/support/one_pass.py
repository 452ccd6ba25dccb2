"""A toy drafter of one pass, of the shape of DFlash: two layers with a cache each, taps of the same position, mask rows
that see one another, and the target's embedding and lm_head. Its checkpoints, and what it drafts, computed densely in
fp64.
"""

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas.base.errors import UserError
from eyas.engine.draft_length.step_costs import HeadWork
from eyas.engine.drafters.base import CacheShape, DrafterNeeds
from eyas.engine.drafters.head_drafter import HeadDrafter
from eyas.engine.round.types import Drafts, Guess
from eyas.kernels.reference.layers.norm import prepare_norm, rms_norm
from eyas.kernels.reference.layers.ops import Rows
from eyas.kernels.reference.rounds.gather import draft_room
from eyas.kernels.reference.rounds.noise import gumbel
from eyas.model.checkpoints.head_kind import HeadKind
from eyas.model.checkpoints.names import Part, flat
from eyas.model.checkpoints.reading import TensorReader, check_tensors, open_checkpoint, open_files
from eyas.model.config import RopeConfig
from eyas.model.networks.rope import rope_table
from eyas.model.weights import Head, num_bytes

EPS = 1e-5
SHAPES = ((4, 2, 16), (6, 1, 32))  # of each layer: query heads, key and value heads, head dimension
AXES = {"context": "NH", "qkv": "NH", "o": "HN"}  # of a layer's matrices
USUAL_BACKLOG = 2
ROPE = RopeConfig(theta=10_000.0)


@dataclass(frozen=True, kw_only=True)
class OnePassConfig:
    taps: tuple[int, ...]
    hidden_size: int
    vocab_size: int
    mask_id: int


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    context_NH: Tensor  # keys and values of the context
    qkv_NH: Tensor  # of the rows that draft
    o_HN: Tensor


@dataclass(frozen=True, kw_only=True)
class OnePassWeights:
    fc_HC: Tensor
    norm_H: Tensor
    layers: tuple[LayerWeights, ...]


def one_pass_head(target, *, seed=3):
    """A random head for a target's config."""
    generator, hidden = torch.Generator().manual_seed(seed), target.hidden_size
    config = OnePassConfig(taps=(1, target.num_layers), hidden_size=hidden, vocab_size=target.vocab_size, mask_id=5)

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    layers = tuple(
        LayerWeights(
            context_NH=matrix(2 * num_kv * dim, hidden),
            qkv_NH=3 * matrix((num_heads + 2 * num_kv) * dim, hidden),  # so that what a row sees matters
            o_HN=matrix(hidden, num_heads * dim),
        )
        for num_heads, num_kv, dim in SHAPES
    )
    weights = OnePassWeights(fc_HC=matrix(hidden, 2 * hidden), norm_H=torch.ones(hidden), layers=layers)
    return Head(config, weights)


def save_one_pass(head, folder):
    """Write a head to a new folder in a format of its own; returns the folder."""
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["OnePassDraft"], "one_pass": asdict(head.config)})
    )
    tensors = {"fc": head.weights.fc_HC, "norm": head.weights.norm_H}
    for index, layer in enumerate(head.weights.layers):
        tensors |= {f"layers.{index}.{name}": getattr(layer, f"{name}_{axes}") for name, axes in AXES.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def _shared_parts(hidden):
    return {"fc_HC": (Part("fc", (hidden, 2 * hidden)),), "norm_H": (Part("norm", (hidden,)),)}


def _layer_parts(hidden, index):
    num_heads, num_kv, dim = SHAPES[index]
    shapes = {
        "context": (2 * num_kv * dim, hidden),
        "qkv": ((num_heads + 2 * num_kv) * dim, hidden),
        "o": (hidden, num_heads * dim),
    }
    return {f"{name}_{axes}": (Part(f"layers.{index}.{name}", shapes[name]),) for name, axes in AXES.items()}


def inspect_one_pass(folder, target, stored=None, *, tap_convention="auto"):
    raw, stored = open_checkpoint(folder, stored)
    config = OnePassConfig(**raw["one_pass"] | {"taps": tuple(raw["one_pass"]["taps"])})
    if (config.hidden_size, config.vocab_size) != (target.hidden_size, target.vocab_size):
        raise UserError(f"{folder}: this head was made for another target")
    layers = [flat(_layer_parts(config.hidden_size, index)) for index in range(len(SHAPES))]
    check_tensors(folder, stored, sum(layers, flat(_shared_parts(config.hidden_size))))
    return config


def load_one_pass(folder, target_config, target_weights, *, device, dtype, stored=None):
    config, (_, stored) = inspect_one_pass(folder, target_config, stored), open_checkpoint(folder, stored)
    parts = [_shared_parts(config.hidden_size), *(_layer_parts(config.hidden_size, i) for i in range(len(SHAPES)))]
    with ExitStack() as files:
        tensors = open_files(folder, stored, [part for group in parts for part in flat(group)], device, files)
        reader = TensorReader(tensors, stored, device, dtype)
        shared, *layers = map(reader.load, parts)
    return Head(config, OnePassWeights(**shared, layers=tuple(LayerWeights(**layer) for layer in layers)))


ONE_PASS = HeadKind(
    title="a one-pass head",
    recognises=lambda raw: "one_pass" in raw,
    inspect=inspect_one_pass,
    load=load_one_pass,
    round_bytes=lambda weights, num_drafts: num_bytes(weights) if num_drafts else 0,
)


class OnePassDrafter(HeadDrafter):
    """Keys and values of a position come from its own taps; then one pass drafts all tokens at once."""

    def __init__(self, parts):
        super().__init__(parts)
        self.weights, self.config = parts.head.weights, parts.head.config
        self._ropes = [rope_table(ROPE, dim, parts.max_positions, torch.device("cpu")) for _, _, dim in SHAPES]

    @classmethod
    def needs_of(cls, config, dtype):
        return DrafterNeeds(
            taps=config.taps,
            tap_width=len(config.taps) * config.hidden_size,
            tap_shift=0,
            caches=tuple(CacheShape(num_kv, dim) for _, num_kv, dim in SHAPES),
            prompt_row_bytes=4 * config.hidden_size * dtype.itemsize,
            draft_vocab_size=config.vocab_size,
        )

    @staticmethod
    def work(num_drafts):
        return HeadWork(1, USUAL_BACKLOG + 1 + num_drafts) if num_drafts else HeadWork(0, 0)

    def read(self, batch, taps_TC):
        ops, weights, rows = batch.ops, self.weights, batch.rows(batch.tables.full)
        context_TH = rms_norm(ops.linear(taps_TC, weights.fc_HC), weights.norm_H, EPS)
        for layer, cache, rope in zip(weights.layers, self.caches, self._ropes, strict=True):
            ops.write(ops.project(context_TH, layer.context_NH), rows, cache, rope, eps=EPS, bias_N=None)

    def propose(self, state, slots_S, sequences, num_drafts, max_length):
        num_rows, size = self.take_backlog(), len(slots_S)

        def catch_up(slots_S):
            if num_rows:
                self.read(*self.unseen(state, slots_S, num_rows, max_length))

        def block(slots_S):
            return self._block(state, slots_S, sequences, num_drafts, max_length)

        self.stages.run(("catch up", size, num_rows), catch_up, slots_S)
        return self.stages.run(("block", size, num_drafts), block, slots_S)

    def _block(self, state, slots_S, sequences, num_drafts, max_length):
        ops, weights, size = self.ops, self.weights, len(slots_S)
        target = self.parts.target
        room_S = draft_room(state.book, slots_S, num_drafts) * ~state.by_lookup_S[slots_S]
        newest_S1 = state.length_S[slots_S].unsqueeze(1) - 1
        column = torch.arange(num_drafts + 1)
        # All rows that were asked for are there, so that drafts do not depend on the budget.
        live_SR = state.live_S[slots_S].unsqueeze(1).expand(-1, num_drafts + 1)
        table_SP = state.tables_of(slots_S).full
        rows = Rows(newest_S1 + column, live_SR, table_SP, max_length + num_drafts)
        masks = torch.full((size, num_drafts), self.config.mask_id)
        tokens_SR = torch.cat((state.tokens_SN[slots_S.unsqueeze(1), newest_S1], masks), dim=1)
        stream_TH = target.weights.embed_VH[tokens_SR.flatten()]
        for layer, cache, rope in zip(weights.layers, self.caches, self._ropes, strict=True):
            qkv = ops.project(rms_norm(stream_TH, weights.norm_H, EPS), layer.qkv_NH)
            attended = ops.attend_block(qkv, rows, cache, rope, eps=EPS, bias_N=None)
            stream_TH = stream_TH + ops.linear(attended, layer.o_HN)
        drafting_TH = stream_TH.unflatten(0, (size, -1))[:, 1:].flatten(0, 1)
        logits_TV = target.logits(prepare_norm(drafting_TH, weights.norm_H, target.dtype), ops)
        guess = Guess(slots_S.new_empty(size * num_drafts), torch.empty(size * num_drafts))
        self.sampler.draft(logits_TV, slots_S, sequences, 0, None, guess)
        guesses_KS = Guess(*(part.view(size, num_drafts).t() for part in guess))
        return Drafts(*self.sampler.end_chains(guesses_KS, room_S, slots_S, state.chain_end(size, num_drafts)))


def _turned(x_THD, positions_T):
    """Half-split rotation in fp64."""
    dim = x_THD.shape[-1]
    angles = positions_T[:, None].double() * ROPE.theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x_THD.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _normed(x_TH):
    return x_TH / (x_TH.square().mean(-1, keepdim=True) + EPS).sqrt()


def dense_drafts(model, taps_TC, tokens, num_drafts, request):
    """Drafts after `tokens` [K], and by what margin each was chosen. `taps_TC` are those of all its tokens, in fp64."""
    config, weights, params = model.head.config, model.head.weights, request.params
    newest = len(tokens) - 1
    context_TH = _normed(taps_TC[:newest] @ weights.fc_HC.double().T)
    embed_VH, lm_head_VH = model.weights.embed_VH.double(), model.weights.lm_head_VH.double()
    stream = embed_VH[torch.tensor([tokens[-1]] + [config.mask_id] * num_drafts)]
    own = newest + torch.arange(num_drafts + 1)
    for layer, (num_heads, num_kv, dim) in zip(weights.layers, SHAPES, strict=True):
        k, v = (context_TH @ layer.context_NH.double().T).unflatten(-1, (2, num_kv, dim)).unbind(1)
        q, own_k, own_v = (
            (_normed(stream) @ layer.qkv_NH.double().T).unflatten(-1, (-1, dim)).split((num_heads, num_kv, num_kv), 1)
        )
        keys = torch.cat((_turned(k, torch.arange(newest)), _turned(own_k, own))).repeat_interleave(
            num_heads // num_kv, 1
        )
        values = torch.cat((v, own_v)).repeat_interleave(num_heads // num_kv, 1)
        scores = torch.einsum("rhd,nhd->hrn", _turned(q, own), keys) / dim**0.5
        attended = torch.einsum("hrn,nhd->rhd", scores.softmax(-1), values).flatten(1)
        stream = stream + attended @ layer.o_HN.double().T
    scores = _normed(stream[1:]) @ lm_head_VH.T
    if params.temperature:
        seeds, choice = torch.full((num_drafts,), params.seed), torch.zeros(num_drafts, dtype=torch.int64)
        scores = scores / params.temperature + gumbel(seeds, choice, own[1:], vocab_size=config.vocab_size)
    best = scores.topk(2, dim=-1)
    return best.indices[:, 0], best.values[:, 0] - best.values[:, 1]
