"""Computes the states of the frozen target in this process, with the operations that serve prompts and its own caches.

A document goes through in chunks on the absolute grid of prompt rows, so its states are those of the engine, bit for
bit, and depend neither on the documents beside it nor on the size of chunks. Where the operations take rows of several
sequences (on a CPU), short documents of about equal length share a forward pass.

Shape letters: T tokens of a packed batch, S documents of a pass, R rows of each, P pages, C taps, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eyas.base.errors import UserError
from eyas.kernels.reference.layers.ops import LayerCache, Ops
from eyas.kernels.reference.layers.roles import PROMPT_OPS, PROMPT_TILE
from eyas.model.batch import PageTables, RowBatch
from eyas.model.checkpoints.device_layout import is_packed
from eyas.model.config import FINAL_NORM_TAP, GptOssConfig
from eyas.model.networks.gpt_oss import GptOss
from eyas.model.weights import TargetWeights
from eyas.train.states.documents import Span, spans_of
from eyas.train.states.pages import KERNEL_ROWS, PAGE_SIZE, PLAIN_ROWS, cache_pages, whole_tiles
from eyas.train.types import Batch, States, Teacher

__all__ = ["TargetStates"]


class _Caches(NamedTuple):
    layers: list[LayerCache]
    ring: int  # pages of sliding layers, page 0 not counted


class TargetStates:
    """The states of a target whose weights are in memory. Implements `HiddenStates`."""

    def __init__(
        self,
        config: GptOssConfig,
        weights: TargetWeights,
        teacher: Teacher,
        *,
        taps: tuple[int, ...],
        longest: int,
        fingerprint: str,
        expert_cache_bytes: int = 0,
        chunk_rows: int | None = None,
        keeps_caches: bool | None = None,
    ) -> None:
        """Take documents of up to `longest` tokens.

        Caches for these are allocated now, or on a GPU (without `keeps_caches`) in each call for its longest document
        and released at its end, so that their memory is free for the step of a head. `weights` may be packed for a
        GPU's kernels, `teacher` never is. `expert_cache_bytes` bounds the dequantised experts that plain operations
        keep; `chunk_rows` are those of a pass, a multiple of 64.
        """
        self.config = config
        self.taps = taps
        self.teacher = teacher
        self.labels_only = False
        self.fingerprint = fingerprint
        self.longest = longest
        has_kernels = is_packed(weights)
        self._takes_several = not has_kernels
        self._rows = chunk_rows or (KERNEL_ROWS if has_kernels else PLAIN_ROWS)
        if self._rows % PROMPT_TILE:
            raise ValueError(f"a chunk has whole tiles of {PROMPT_TILE} rows, got {self._rows}")
        self._ops = _kernel_ops(config, weights, self._rows) if has_kernels else PROMPT_OPS
        self._target = GptOss(
            config,
            weights,
            max_positions=whole_tiles(longest),
            taps=(*taps, FINAL_NORM_TAP),
            expert_cache_bytes=expert_cache_bytes,
        )
        if keeps_caches is None:
            keeps_caches = self._target.device.type != "cuda"
        self._kept = self._new_caches(longest) if keeps_caches else None

    def _new_caches(self, longest: int) -> _Caches:
        pages = cache_pages(self.config, longest=longest, chunk_rows=self._rows)
        return _Caches(self._target.new_cache(pages.full + 1, pages.sliding + 1, PAGE_SIZE), pages.sliding)

    def states(self, batch: Batch) -> States:
        """Compute taps [T, C] and last hidden states [T, H] in the compute dtype, on the device of the weights.

        Raises UserError for a document longer than the caches.
        """
        spans = spans_of(batch)
        for span, source in zip(spans, batch.sources, strict=True):
            if span.length > self.longest:
                raise UserError(f"{source}: {span.length} tokens, but the target has room for {self.longest}")
        device, dtype, num_tokens = self._target.device, self._target.dtype, batch.num_tokens
        # Made here, since tensors of the inference mode can take no part in a graph.
        taps_TC = torch.empty(num_tokens, len(self.taps) * self.config.hidden_size, dtype=dtype, device=device)
        last_TH = torch.empty(num_tokens, self.config.hidden_size, dtype=dtype, device=device)
        with torch.inference_mode():
            ids_T = batch.ids_T.to(device)
            caches = self._kept or self._new_caches(max(span.length for span in spans))
            for group in self._groups(spans):
                for low in range(0, group[0].length, self._rows):
                    high = min(low + self._rows, group[0].length)
                    self._pass(group, low, high, caches, ids_T, taps_TC, last_TH)
        return States(taps_TC, last_TH)

    def _groups(self, spans: Sequence[Span]) -> Iterator[list[Span]]:
        """Yield documents that share passes, the longest first; several only if all their rows fit one pass."""
        group: list[Span] = []
        for span in sorted(spans, key=lambda span: -span.length):
            if not span.length:
                continue
            if group and (not self._takes_several or (len(group) + 1) * whole_tiles(group[0].length) > self._rows):
                yield group
                group = []
            group.append(span)
        if group:
            yield group

    def _pass(
        self,
        group: Sequence[Span],
        low: int,
        high: int,
        caches: _Caches,
        ids_T: Tensor,
        taps_TC: Tensor,
        last_TH: Tensor,
    ) -> None:
        """Compute positions `low` to `high` of a group and put the states into their places in the batch."""
        device = ids_T.device
        width = high - low if self._takes_several else whole_tiles(high - low)  # plain operations pad for themselves
        positions_R = torch.arange(low, low + width, device=device)
        starts_S1 = torch.tensor([[span.start] for span in group], device=device)
        ends_S1 = torch.tensor([[span.end] for span in group], device=device)
        places_SR = starts_S1 + positions_R
        live_SR = places_SR < ends_S1
        batch = RowBatch(
            tokens_SR=ids_T[places_SR.clamp(max=len(ids_T) - 1)],
            positions_SR=positions_R.expand(len(group), -1),
            live_SR=live_SR,
            tables=self._tables(len(group), low + width, caches.ring),
            max_length=low + width,
            ops=self._ops,
        )
        tapped = self._target.forward(batch, caches.layers).taps_TC
        assert tapped is not None
        for place, rows in enumerate(tapped.unflatten(0, live_SR.shape)):
            start, end = group[place].start + low, min(group[place].start + high, group[place].end)
            taps_RC, last_RH = rows[: end - start].split((taps_TC.shape[1], last_TH.shape[1]), dim=1)
            taps_TC[start:end], last_TH[start:end] = taps_RC, last_RH

    def _tables(self, num_documents: int, length: int, ring: int) -> PageTables:
        """Return the pages of documents up to `length`, one document's after another's.

        Those of sliding layers form a ring of `ring` pages, which only a document alone in its passes goes round.
        """
        width = -(-length // PAGE_SIZE)
        pages_SP = torch.arange(num_documents * width, device=self._target.device).view(num_documents, width)
        return PageTables(1 + pages_SP, 1 + pages_SP % ring)


def _kernel_ops(config: GptOssConfig, weights: TargetWeights, max_rows: int) -> Ops:
    from eyas.kernels.cuda.attention.flash import hopper_attention
    from eyas.kernels.cuda.moe.experts import hopper_products
    from eyas.kernels.triton.prompts.ops import PromptOps

    device = weights.embed_VH.device
    return PromptOps(hopper_products(config, device, max_rows), hopper_attention(device))
