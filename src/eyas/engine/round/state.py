"""The state of running sequences, resident on the device: one row per slot.

The host writes a row when a sequence enters its slot and reads results through copies; no round waits for the host.
Shape letters: S slots, N positions, P pages a sequence, V vocabulary, W tap ring, C tap width.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eyas.base.types import FILTERS, MAX_LOGIT_BIAS, MAX_STOP_IDS
from eyas.engine.draft_length.confidence import LEVELS, NUM_LEVELS, Cut
from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.reference.sample import SamplingRows
from eyas.model.batch import PageTables

__all__ = ["DeviceState", "SamplingFlags"]

GREEDY_BELOW = 1e-5  # fp32 logits cannot be divided by smaller temperatures; vLLM's bound

MAX_STOPS = 2 * MAX_STOP_IDS  # the request's and the model's end-of-turn ids


class SamplingFlags(NamedTuple):
    """Flags of what the sequences of a step use; the step leaves out the rest."""

    any_random: bool
    any_filter: bool


class DeviceState:
    def __init__(
        self,
        *,
        num_slots: int,
        max_positions: int,
        page_size: int,
        vocab_size: int,
        tap_width: int,
        tap_ring: int,
        tap_dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocates one slot more than `num_slots`: `dead_slot`, which no sequence ever enters."""

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(num_slots + 1, *shape, dtype=dtype, device=device)

        self.dead_slot = num_slots
        self.device = device
        self.vocab_size = vocab_size
        self.tokens_SN = zeros(max_positions)
        self.length_S = zeros()
        self.length_S[self.dead_slot] = 1
        self.live_S = zeros(dtype=torch.bool)
        self.remaining_S = zeros()
        self.draft_limit_S = zeros()
        self.by_lookup_S = zeros(dtype=torch.bool)  # uses prompt lookup, where a head drafts for others
        self.cut_SN = zeros(1 + NUM_LEVELS, dtype=torch.float32)  # a `Cut`: the threshold, then the chances
        self._draft_limits: list[tuple[int, bool]] = []  # as last copied to the device
        self.level_edges_N = torch.tensor(LEVELS, device=device).log()
        self._cut_SN = np.zeros((num_slots + 1, 1 + NUM_LEVELS), dtype=np.float32)
        num_pages = -(-max_positions // page_size)
        self.tables = PageTables(zeros(num_pages), zeros(num_pages))
        self.sampling = SamplingRows(
            temperature=zeros(dtype=torch.float32),
            top_k=zeros(),
            top_p=zeros(dtype=torch.float32),
            min_p=zeros(dtype=torch.float32),
            seed=zeros(),
            choice=zeros(),
            any_random=False,
            any_filter=False,
        )
        self.stop_ids_SN = zeros(MAX_STOPS)
        self.first_stop_S = zeros()  # first position at which stop tokens may be drawn
        self.presence_S = zeros(dtype=torch.float32)
        self.frequency_S = zeros(dtype=torch.float32)
        self.repetition_S = zeros(dtype=torch.float32)
        self.bias_ids_SN = zeros(MAX_LOGIT_BIAS)
        self.bias_SN = zeros(MAX_LOGIT_BIAS, dtype=torch.float32)
        self.num_bias_S = zeros()
        self.num_top_S = zeros()  # most likely tokens to report
        # Token counts for penalties: allocated when the first request asks for one.
        self.output_counts_SV: Tensor | None = None
        self.in_prompt_SV: Tensor | None = None
        # The hidden states that the head pairs with the tokens at the same positions, for the last W positions.
        self.tap_ring_SWC = zeros(tap_ring, tap_width, dtype=tap_dtype)
        self.head_length_S = zeros()  # positions below it are in the head's cache

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))

    def enter(self, sequence: Sequence) -> None:
        """Write the row of a sequence that was given a slot. It becomes live when its first token is drawn."""
        slot, params, sampling = sequence.slot, sequence.request.params, self.sampling
        assert slot is not None
        prompt = torch.tensor(sequence.request.prompt_ids, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        self.tokens_SN[slot, : len(prompt)] = prompt.to(self.device, non_blocking=True)
        stops = torch.full((MAX_STOPS,), -1)
        stops[: len(sequence.stop_ids)] = torch.tensor(sequence.stop_ids)
        self.stop_ids_SN[slot] = stops.to(self.device, non_blocking=True)
        for field_S, value in (
            (self.length_S, len(prompt)),
            (self.live_S, False),
            (self.remaining_S, sequence.budget),
            (sampling.temperature, params.temperature if params.temperature >= GREEDY_BELOW else 0.0),
            *((getattr(sampling, name), value) for name, value in params.filters().items()),
            (sampling.seed, sequence.seed),
            (sampling.choice, sequence.choice),
            (self.first_stop_S, len(prompt) + params.min_tokens),
            (self.presence_S, params.presence_penalty),
            (self.frequency_S, params.frequency_penalty),
            (self.repetition_S, params.repetition_penalty),
            (self.num_top_S, params.logprobs or 0),
            (self.head_length_S, 1),  # position 0 has no hidden state before it
        ):
            field_S[slot].fill_(value)  # an assignment would copy from the host and wait for all queued work
        self._enter_bias(slot, params.logit_bias)
        if uses_penalties(sequence):
            self._enter_counts(slot, prompt)

    def _enter_bias(self, slot: int, bias: Mapping[int, float]) -> None:
        self.num_bias_S[slot].fill_(len(bias))
        self.bias_SN[slot].fill_(0)
        self.bias_ids_SN[slot].fill_(0)
        if bias:
            ids, values = (
                torch.tensor(part).to(self.device, non_blocking=True) for part in zip(*bias.items(), strict=True)
            )
            self.bias_ids_SN[slot, : len(ids)] = ids
            self.bias_SN[slot, : len(ids)] = values

    def allocate_counts(self) -> None:
        """Allocate the token counts for penalties, for all slots."""
        if self.output_counts_SV is None:
            shape = (self.length_S.shape[0], self.vocab_size)
            self.output_counts_SV = torch.zeros(shape, dtype=torch.int32, device=self.device)
            self.in_prompt_SV = torch.zeros(shape, dtype=torch.bool, device=self.device)

    def _enter_counts(self, slot: int, prompt: Tensor) -> None:
        self.allocate_counts()
        assert self.output_counts_SV is not None and self.in_prompt_SV is not None
        self.output_counts_SV[slot].fill_(0)
        self.in_prompt_SV[slot].fill_(False).index_fill_(0, prompt.to(self.device, non_blocking=True), True)

    def limit_drafts(self, limits: Mapping[int, int], by_lookup: Collection[int] = ()) -> None:
        """Set the draft limit of each slot and which slots use prompt lookup; only changes are copied."""
        wanted = [(limits.get(slot, 0), slot in by_lookup) for slot in range(len(self.draft_limit_S))]
        if wanted != self._draft_limits:
            numbers, look_up = zip(*wanted, strict=True)
            self.draft_limit_S.copy_(torch.tensor(numbers), non_blocking=True)
            self.by_lookup_S.copy_(torch.tensor(look_up), non_blocking=True)
            self._draft_limits = wanted

    def cut_drafts(self, cut: Cut) -> None:
        """Set where chains end: at the cut in its slots, nowhere in the others."""
        wanted = np.full_like(self._cut_SN, -np.inf)
        wanted[:, 1:] = self._cut_SN[:, 1:]
        wanted[list(cut.slots)] = cut.logs_SN
        if (wanted != self._cut_SN).any():
            self.cut_SN.copy_(torch.from_numpy(wanted), non_blocking=True)
            self._cut_SN = wanted

    def set_pages(self, sequence: Sequence) -> None:
        slot = sequence.slot
        for table, pages in zip(self.tables, (sequence.full_pages, sequence.sliding_pages), strict=True):
            table[slot, : len(pages)] = torch.tensor(pages, dtype=torch.int64).to(self.device, non_blocking=True)

    def tables_of(self, slots_S: Tensor) -> PageTables:
        return PageTables(self.tables.full[slots_S], self.tables.sliding[slots_S])

    @staticmethod
    def flags_of(sequences: list[Sequence]) -> SamplingFlags:
        params = [sequence.request.params for sequence in sequences]
        return SamplingFlags(
            any_random=any(p.temperature > 0 for p in params),
            any_filter=any(p.temperature > 0 and p.filters() != FILTERS for p in params),
        )

    def sampling_of(self, slots_S: Tensor, flags: SamplingFlags) -> SamplingRows:
        """Return the sampling parameters of some slots."""
        return self.sampling.take(slots_S)._replace(**flags._asdict())


def uses_penalties(sequence: Sequence) -> bool:
    params = sequence.request.params
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1)
