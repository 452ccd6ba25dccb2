"""Training of EAGLE-3 heads: the training-time test of `train/reference.py`, in memory that does not grow with depths.

Given the keys and values of depth 0, rows are independent of each other: a later depth of a row sees itself and these.
So a batch is computed in three phases.

1. Keys and values of depth 0 for all rows, without a graph.
2. Passes over some rows each: all depths forward, the loss of these rows, all depths backward. Gradients of the keys
   and values of depth 0 are summed on the way. Of a long batch, activations of one pass exist at a time.
3. The first phase again, with a graph, and backward from the summed gradients.

Only the first and third phases are repeated, which is little: fc, k_proj and v_proj at one depth. A row that is taught
at no depth has no part in the second phase (exact row cutting), and processes may divide the rows of the second phase:
their gradients sum to those of the whole.

Sources: Li et al., "EAGLE-3", 2025, for the head; see `attention.py` for the attention.

Shape letters: T tokens of a batch, R rows of a pass, C = len(taps) Ht, H hidden, G key-value heads, Q query heads for
each, D head dimension, V vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from eyas.base.errors import UserError
from eyas.model.config import Eagle3Config
from eyas.model.networks.rope import rope_table
from eyas.train.heads.attention import Prefix, attend, joined_blocks, joined_sizes, row_blocks
from eyas.train.heads.base import WHOLE, HeadPass, Readout, Share, TrainableHead
from eyas.train.heads.choosing import settled
from eyas.train.heads.numerics import linear, rms_norm, rotate, swiglu, wide
from eyas.train.heads.rows import cells_of, taught_rows
from eyas.train.heads.ways import find_way
from eyas.train.types import Batch, Cells, Rule, States, Teacher

__all__ = ["Eagle3TrainableHead"]

Own = tuple[Tensor, Tensor]  # keys and values of a later depth
Attend = Callable[[Tensor, Sequence[Own]], Tensor]

ROWS_OF_PASS = 4096
ROWS_OF_KEYS = 16384  # of the first and third phases, which hold little a row


class _Norm(nn.Module):
    """The weight of a norm, under the name that the checkpoint gives it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def _layer(config: Eagle3Config) -> nn.ModuleDict:
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    attn = {"q_proj": (2 * hidden, query), "k_proj": (2 * hidden, key), "v_proj": (2 * hidden, key)}
    mlp = {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}
    return nn.ModuleDict(
        {
            "hidden_norm": _Norm(hidden),
            "input_layernorm": _Norm(hidden),
            "post_attention_layernorm": _Norm(hidden),
            "self_attn": nn.ModuleDict(
                {name: _linear(*shape) for name, shape in (attn | {"o_proj": (query, hidden)}).items()}
            ),
            "mlp": nn.ModuleDict({name: _linear(*shape) for name, shape in mlp.items()}),
        }
    )


class Eagle3TrainableHead(TrainableHead):
    """An EAGLE-3 head of one layer with every option of its config. State dicts interchange with `ReferenceHead`."""

    config: Eagle3Config

    def __init__(
        self,
        config: Eagle3Config,
        target_ids_V: Tensor,
        *,
        num_depths: int = 7,
        embed_VH: Tensor | None = None,
        rows_of_pass: int = ROWS_OF_PASS,
        rows_of_keys: int = ROWS_OF_KEYS,
    ) -> None:
        """`target_ids_V` int64 [Vd]: the target id of every draft id, ascending.

        `embed_VH` [V, H] is an embedding of the head's own, frozen; without it the head takes the target's. Raises
        UserError if its width is not the head's, or the taps are as wide as no `fc` could make up for.
        """
        super().__init__()
        width = len(config.taps) * config.target_hidden_size
        if not config.has_fc and width != config.hidden_size:
            raise UserError(
                f"a head without fc takes its taps as they are: they have {width} values, its hidden size is "
                f"{config.hidden_size}; use fc or one tap of a target of this hidden size"
            )
        embed_width = config.target_hidden_size if embed_VH is None else embed_VH.shape[1]
        if embed_width != config.hidden_size:
            raise UserError(
                f"the embedding has {embed_width} values a token, the head's hidden size is {config.hidden_size}; "
                "use the target's hidden size, or a head with an embedding of its own"
            )
        self.config, self.num_depths = config, num_depths
        self.rows_of_pass, self.rows_of_keys = rows_of_pass, rows_of_keys
        if config.has_fc:
            self.fc = _linear(width, config.hidden_size)
        if config.norm_before_fc:
            self.input_norm = _Norm(width)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(_Norm(config.target_hidden_size) for _ in config.taps)
        self.midlayer = _layer(config)
        self.norm = _Norm(config.hidden_size)
        self.lm_head = _linear(config.hidden_size, config.draft_vocab_size)
        self.target_ids_V: Tensor
        self.register_buffer("target_ids_V", target_ids_V, persistent=False)
        self.embed_VH: Tensor | None
        self.register_buffer("embed_VH", embed_VH, persistent=False)

    @property
    def fixed_tensors(self) -> dict[str, Tensor]:
        return {} if self.embed_VH is None else {"embed_tokens.weight": self.embed_VH}

    @property
    def readout(self) -> Readout:
        return Readout(self.norm.weight, self.lm_head.weight, self.config.rms_norm_eps, self.target_ids_V)

    def settle_attention(
        self, device: torch.device, dtype: torch.dtype, *, longest: int, deterministic: bool
    ) -> str | None:
        self.attention, why = settled(
            self.attention, self.config, device, dtype,
            rows=self.rows_of_pass, longest=longest, deterministic=deterministic,
        )  # fmt: skip
        return why

    def rows(self, batch: Batch, rule: Rule, share: Share) -> Tensor:
        """Return the rows that passes compute, int64 [R], ascending."""
        if not self.cuts_rows:
            return torch.arange(batch.num_tokens, device=batch.ids_T.device)[share.index :: share.of]
        return taught_rows(batch, self.num_depths, rule, share)

    def cells(self, batch: Batch, *, rule: Rule, share: Share = WHOLE, decay: float = 1.0) -> list[Cells]:
        rows_R = taught_rows(batch, self.num_depths, rule, share)
        cells = cells_of(batch, rows_R, self.num_depths, rule, decay)
        return [Cells(rows_R[x.rows_N], x.targets_N, x.weight) for x in cells]

    def passes(
        self, batch: Batch, states: States, teacher: Teacher, *, rule: Rule, share: Share = WHOLE, decay: float = 1.0
    ) -> Iterator[HeadPass]:
        train = torch.is_grad_enabled()
        rows_R = self.rows(batch, rule, share)
        if not len(rows_R):
            return
        inputs = _Inputs(self, batch, states, teacher)
        with torch.no_grad():
            prefix = inputs.prefix()
        for rows in rows_R.split(self.rows_of_pass):
            with torch.set_grad_enabled(train):
                one = _Pass(rows, inputs.outputs(rows, prefix), cells_of(batch, rows, self.num_depths, rule, decay))
            yield one
            if train and one.waits:
                raise RuntimeError("a pass of a head was not taken backward; evaluate under torch.no_grad()")
        if train:
            inputs.prefix_backward(prefix)


class _Pass(HeadPass):
    def __init__(self, rows_R: Tensor, outputs: list[Tensor], cells: list[Cells]) -> None:
        self.rows_R, self.cells = rows_R, cells
        self.outputs = [x.detach() for x in outputs]
        self._graph = outputs
        self.waits = True

    def backward(self, grads: Sequence[Tensor]) -> None:
        graph, self._graph, self.waits = self._graph, [], False
        torch.autograd.backward(graph, list(grads))


class _Inputs:
    """A head and a batch: what the three phases compute, with matrices cast to the compute dtype once."""

    def __init__(self, head: Eagle3TrainableHead, batch: Batch, states: States, teacher: Teacher) -> None:
        self.config, self.num_depths = head.config, head.num_depths
        self.batch, self.taps_TC = batch, states.taps_TC
        self.embed_VH = teacher.embed_VH if head.embed_VH is None else head.embed_VH
        self.dtype = teacher.embed_VH.dtype
        self.rows_of_keys = head.rows_of_keys
        self.recomputes = head.recomputes
        # The lm_head is the loss's.
        named = (x for x in head.named_parameters() if x[1] is not head.lm_head.weight)
        self._parameters = {name.removesuffix(".weight"): parameter for name, parameter in named}
        self._matrices = {name: p.detach().to(self.dtype) for name, p in self._parameters.items() if p.ndim == 2}
        self.way = find_way(head.attention, head.config, self.embed_VH.device, self.dtype)
        length = max(b - a for a, b in zip(batch.starts, batch.starts[1:], strict=False))
        cos, sin = rope_table(head.config.rope, head.config.head_dim, length + head.num_depths, batch.ids_T.device)
        self.rope = (cos.double(), sin.double()) if self.dtype == torch.float64 else (cos, sin)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self._matrices[name], self._parameters[name])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self._parameters[name], self.config.rms_norm_eps)

    def prefix(self) -> Prefix:
        """Compute the keys and values of depth 0 for all rows."""
        shape = (self.batch.num_tokens, self.config.num_kv_heads, self.config.head_dim)
        made = torch.empty((2, *shape), dtype=self.dtype, device=self.taps_TC.device)
        for start, stop in self._stretches():
            made[0, start:stop], made[1, start:stop] = self._key_value(start, stop)
        sums = torch.zeros(made.shape, dtype=wide(made[:0]).dtype, device=made.device)
        return Prefix(*made, *sums)

    def prefix_backward(self, prefix: Prefix) -> None:
        """Add what follows from the summed gradients of the keys and values of depth 0."""
        for start, stop in self._stretches():
            with torch.enable_grad():
                made = self._key_value(start, stop)
            grads = (x[start:stop].to(self.dtype) for x in (prefix.key_grads_TGD, prefix.value_grads_TGD))
            torch.autograd.backward(made, list(grads))

    def _stretches(self) -> Iterator[tuple[int, int]]:
        total = self.batch.num_tokens
        for start in range(0, total, self.rows_of_keys):
            yield start, min(start + self.rows_of_keys, total)

    def outputs(self, rows_R: Tensor, prefix: Prefix) -> list[Tensor]:
        """Compute the outputs of all depths [R, H] for some rows."""
        config = self.config
        attend = self._attention(rows_R, prefix)
        own: list[Own] = []
        outputs: list[Tensor] = []
        hidden = self._fuse(self.taps_TC[rows_R])
        for depth in range(self.num_depths):
            compute = partial(self._depth, rows_R, depth, attend, tuple(own))
            if self.recomputes and torch.is_grad_enabled():
                output, *made = checkpoint(compute, hidden, use_reentrant=False)
            else:
                output, *made = compute(hidden)
            if made:
                own.append((made[0], made[1]))
            outputs.append(output)
            hidden = self._norm(output, "norm") if config.norm_output else output
        return outputs

    def _depth(
        self,
        rows_R: Tensor,
        depth: int,
        attend: Attend,
        own: tuple[Own, ...],
        hidden_RH: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the output of a depth [R, H], and from depth 1 on its keys and values."""
        config = self.config
        both, normed = self._pairs(hidden_RH, rows_R, depth)
        made = self._project(both, rows_R, depth) if depth else ()
        q = self._heads(self._linear(both, "midlayer.self_attn.q_proj"))
        q = rotate(q, *self._angles(rows_R, depth)).unflatten(1, (config.num_kv_heads, -1))
        attn = attend(q, (*own, made) if made else own).flatten(1)
        residual = normed if config.norm_before_residual else hidden_RH
        residual = residual + self._linear(attn, "midlayer.self_attn.o_proj")
        inner = self._norm(residual, "midlayer.post_attention_layernorm")
        gate, up = (self._linear(inner, f"midlayer.mlp.{name}_proj") for name in ("gate", "up"))
        return residual + self._linear(swiglu(gate, up), "midlayer.mlp.down_proj"), *made

    def _attention(self, rows_R: Tensor, prefix: Prefix) -> Attend:
        """Return attention of these rows, as a function of queries and own keys and values."""
        places, starts = rows_R.tolist(), self.batch.starts
        if self.way.uses_kernels:
            from eyas.kernels.training.library import LIBRARIES
            from eyas.train.heads.kernel_attention import attend_by_kernels, pass_rows

            library = None if self.way.library is None else LIBRARIES[self.way.library]
            rows = pass_rows(rows_R, places, starts, has_library=library is not None)
            return lambda q, own: attend_by_kernels(q, prefix, rows, own, library)
        blocks = row_blocks(places, starts)
        if rows_R.is_cuda:
            blocks = joined_blocks(blocks, *joined_sizes(self.config.num_heads))
        starts_R = rows_R - self.batch.positions_T[rows_R]
        return lambda q, own: attend(q, prefix, rows_R, blocks, own, starts_R=starts_R)

    def _fuse(self, taps_RC: Tensor) -> Tensor:
        """Return the tapped states fused to one hidden state [R, H]."""
        config = self.config
        if not config.has_fc:
            return taps_RC.to(self.dtype)
        if config.fc_norm:
            parts = enumerate(taps_RC.chunk(len(config.taps), dim=-1))
            taps_RC = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in parts], dim=-1)
        if config.norm_before_fc:
            taps_RC = self._norm(taps_RC, "input_norm")
        return self._linear(taps_RC.to(self.dtype), "fc")

    def _pairs(self, hidden_RH: Tensor, rows_R: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Return [normed embedding of x_{r+1+depth}, normed hidden state] [R, 2 H], and the latter alone.

        A row at the end of the batch, which is taught nothing there, takes the last token.
        """
        tokens_R = self.batch.ids_T[(rows_R + 1 + depth).clamp(max=self.batch.num_tokens - 1)]
        embedded = self.embed_VH[tokens_R].to(self.dtype)
        normed = self._norm(hidden_RH, "midlayer.hidden_norm")
        return torch.cat((self._norm(embedded, "midlayer.input_layernorm"), normed), dim=-1), normed

    def _project(self, both: Tensor, rows_R: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Return keys, rotated, and values [R, G, D]."""
        k, v = (self._heads(self._linear(both, f"midlayer.self_attn.{name}_proj")) for name in ("k", "v"))
        return rotate(k, *self._angles(rows_R, depth)), v

    def _key_value(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        rows_R = torch.arange(start, stop, device=self.batch.ids_T.device)
        both, _ = self._pairs(self._fuse(self.taps_TC[start:stop]), rows_R, 0)
        return self._project(both, rows_R, 0)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.config.head_dim)

    def _angles(self, rows_R: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        at_R = self.batch.positions_T[rows_R] + depth
        return self.rope[0][at_R], self.rope[1][at_R]
