"""The state of running sequences, resident on the device: one row per slot.

The host writes a row when a sequence enters its slot and reads results through copies; no round waits for the host.
Shape letters: S slots, N positions, P pages a sequence, V vocabulary, W tap ring, C tap width.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from eyas.base.types import FILTERS, MAX_DRAFTS, MAX_LOGIT_BIAS, MAX_STOP_IDS
from eyas.engine.draft_length.confidence import LEVELS, NUM_LEVELS, Cut
from eyas.engine.round.types import Drafts
from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.reference.rounds.chain import ChainEnd
from eyas.kernels.reference.rounds.gather import Book
from eyas.kernels.reference.rounds.sample import SamplingRows
from eyas.model.batch import PageTables

__all__ = ["DeviceState", "SamplingFlags"]

GREEDY_BELOW = 1e-5  # fp32 logits cannot be divided by smaller temperatures; vLLM's bound

MAX_STOPS = 2 * MAX_STOP_IDS  # the request's and the model's end-of-turn ids


class SamplingFlags(NamedTuple):
    """Flags of what the sequences of a step use; the step leaves out the rest."""

    any_random: bool
    any_filter: bool


class _Fields:
    """Fields of one dtype with a number for each slot, rows of one tensor: a sequence enters all of them at once."""

    def __init__(self, names: Seq[str], num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        self._names = names
        width = -(-num_slots // 4) * 4  # each row is aligned to 16 bytes, as a tensor of its own is
        self._rows_FS = torch.zeros(len(names), width, dtype=dtype, device=device)
        self.row_of = {name: row_S[:num_slots] for name, row_S in zip(names, self._rows_FS, strict=True)}

    def table(self, values: Mapping[str, Seq[float]]) -> Tensor:
        """Return the values of some slots by field, for `write`."""
        return torch.tensor([values[name] for name in self._names], dtype=self._rows_FS.dtype)

    def write(self, slots_S: Tensor, table_FS: Tensor) -> None:
        self._rows_FS[:, slots_S] = table_FS


INTS = (
    "length", "remaining", "seed", "choice", "first_stop", "num_top", "num_bias", "head_length", "top_k",
)  # fmt: skip
FLOATS = "temperature", "top_p", "min_p", "presence", "frequency", "repetition"


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
        self._ints = _Fields(INTS, num_slots + 1, torch.int64, device)
        self._floats = _Fields(FLOATS, num_slots + 1, torch.float32, device)
        int_of, float_of = self._ints.row_of, self._floats.row_of
        self.tokens_SN = zeros(max_positions)
        self.length_S = int_of["length"]
        self.length_S[self.dead_slot] = 1
        self.live_S = zeros(dtype=torch.bool)
        self.remaining_S = int_of["remaining"]
        self.draft_limit_S = zeros()
        self.by_lookup_S = zeros(dtype=torch.bool)  # uses prompt lookup, where a head drafts for others
        self.cut_SN = zeros(1 + NUM_LEVELS, dtype=torch.float32)  # a `Cut`: the threshold, then the chances
        self._draft_limits = np.zeros((2, num_slots + 1), dtype=np.int64)  # and by lookup, as last copied to the device
        self.level_edges_N = torch.tensor(LEVELS, device=device).log()
        self._cut_SN = np.zeros((num_slots + 1, 1 + NUM_LEVELS), dtype=np.float32)
        num_pages = -(-max_positions // page_size)
        self.tables = PageTables(zeros(num_pages), zeros(num_pages))
        self.sampling = SamplingRows(
            temperature=float_of["temperature"],
            top_k=int_of["top_k"],
            top_p=float_of["top_p"],
            min_p=float_of["min_p"],
            seed=int_of["seed"],
            choice=int_of["choice"],
            any_random=False,
            any_filter=False,
        )
        self.stop_ids_SN = zeros(MAX_STOPS)
        self.first_stop_S = int_of["first_stop"]  # first position at which stop tokens may be drawn
        self.presence_S = float_of["presence"]
        self.frequency_S = float_of["frequency"]
        self.repetition_S = float_of["repetition"]
        self.bias_ids_SN = zeros(MAX_LOGIT_BIAS)
        self.bias_SN = zeros(MAX_LOGIT_BIAS, dtype=torch.float32)
        self.num_bias_S = int_of["num_bias"]
        self._biased: set[int | None] = set()  # slots whose row of the two is not zero
        self.num_top_S = int_of["num_top"]  # most likely tokens to report
        # Token counts for penalties: allocated when the first request asks for one.
        self.output_counts_SV: Tensor | None = None
        self.in_prompt_SV: Tensor | None = None
        # The hidden states that the head pairs with the tokens at the same positions, for the last W positions.
        self.tap_ring_SWC = zeros(tap_ring, tap_width, dtype=tap_dtype)
        self.head_length_S = int_of["head_length"]  # positions below it are in the head's cache
        self._none_S = zeros()  # drafts of a round without any
        self._chain_end = ChainEnd(zeros(MAX_DRAFTS).flatten(), zeros(), zeros(MAX_DRAFTS).flatten())

    @property
    def book(self) -> Book:
        return Book(
            tokens_SN=self.tokens_SN,
            length_S=self.length_S,
            live_S=self.live_S,
            remaining_S=self.remaining_S,
            draft_limit_S=self.draft_limit_S,
            by_lookup_S=self.by_lookup_S,
            head_length_S=self.head_length_S,
            full_SP=self.tables.full,
            sliding_SP=self.tables.sliding,
            tap_ring_SWC=self.tap_ring_SWC,
        )

    def no_drafts(self, size: int) -> Drafts:
        """Return the drafts of a round without any, which are always the same tensors."""
        return Drafts(self._none_S[:size].unsqueeze(1)[:, :0], self._none_S[:size])

    def chain_end(self, size: int, num_drafts: int) -> ChainEnd:
        """Return memory for the drafts of a round, which is the same for every size."""
        ids_T, num_valid_S, levels_T = self._chain_end
        if ids_T.numel() < size * num_drafts:
            raise ValueError(f"{num_drafts} drafts of a sequence; there is room for {MAX_DRAFTS}")
        ids_SK, levels_SK = (part[: size * num_drafts].view(size, num_drafts) for part in (ids_T, levels_T))
        return ChainEnd(ids_SK, num_valid_S[:size], levels_SK)

    @property
    def kept(self) -> list[Tensor]:
        """Tensors that stages are given again and again."""
        return [self._none_S, *self._chain_end]

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))

    def enter(self, sequences: Seq[Sequence]) -> None:
        """Write the rows of sequences that were given slots. Each becomes live when its first token is drawn."""
        if not sequences:
            return
        params = [sequence.request.params for sequence in sequences]
        lengths = [sequence.prompt_length for sequence in sequences]
        slots = [sequence.slot for sequence in sequences]
        slots_S = self.on_device(slots)
        self._write(self.tokens_SN, slots, [sequence.request.prompt_ids for sequence in sequences])
        stops_SN = torch.full((len(sequences), MAX_STOPS), -1)
        for row, sequence in enumerate(sequences):
            stops_SN[row, : len(sequence.stop_ids)] = torch.tensor(sequence.stop_ids)
        self.stop_ids_SN[slots_S] = self.on_device(stops_SN)
        filters = [p.filters() for p in params]
        ints = {
            "length": lengths,
            "remaining": [sequence.budget for sequence in sequences],
            "seed": [sequence.seed for sequence in sequences],
            "choice": [sequence.choice for sequence in sequences],
            "first_stop": [length + p.min_tokens for length, p in zip(lengths, params, strict=True)],
            "num_top": [p.logprobs or 0 for p in params],
            "num_bias": [len(p.logit_bias) for p in params],
            "head_length": [1] * len(params),  # position 0 has no hidden state before it
            "top_k": [int(values["top_k"]) for values in filters],
        }
        floats = {
            "temperature": [p.temperature if p.temperature >= GREEDY_BELOW else 0.0 for p in params],
            "top_p": [values["top_p"] for values in filters],
            "min_p": [values["min_p"] for values in filters],
            "presence": [p.presence_penalty for p in params],
            "frequency": [p.frequency_penalty for p in params],
            "repetition": [p.repetition_penalty for p in params],
        }
        self._ints.write(slots_S, self.on_device(self._ints.table(ints)))
        self._floats.write(slots_S, self.on_device(self._floats.table(floats)))
        self.live_S.index_fill_(0, slots_S, False)
        biases = [p.logit_bias for p in params]
        if any(biases) or not self._biased.isdisjoint(slots):
            self._biased = self._biased.difference(slots) | {s for s, bias in zip(slots, biases, strict=True) if bias}
            self._enter_bias(slots_S, biases)
        for sequence in sequences:
            if uses_penalties(sequence):
                self._enter_counts(sequence)

    def on_device(self, numbers: Any) -> Tensor:
        """Return numbers on the device without waiting for queued work, as copies of unpinned memory may."""
        tensor = torch.as_tensor(numbers)
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def _write(self, table_SN: Tensor, slots: Seq[int | None], rows: Seq[Seq[int]]) -> None:
        """Write the first numbers of some rows of a table, as many as there are of each, with one copy for all."""
        sizes = [len(row) for row in rows]
        flat = np.empty((3, sum(sizes)), dtype=np.int64)
        flat[0] = np.repeat(np.array(slots), sizes)
        for end, size, row in zip(np.cumsum(sizes), sizes, rows, strict=True):
            flat[1, end - size : end] = np.arange(size)
            flat[2, end - size : end] = row
        slots_T, columns_T, numbers_T = self.on_device(flat)
        table_SN[slots_T, columns_T] = numbers_T

    def _enter_bias(self, slots_S: Tensor, biases: Seq[Mapping[int, float]]) -> None:
        ids_SN = np.zeros((len(biases), MAX_LOGIT_BIAS), dtype=np.int64)
        bias_SN = np.zeros((len(biases), MAX_LOGIT_BIAS), dtype=np.float32)
        for row, bias in enumerate(biases):
            ids_SN[row, : len(bias)] = list(bias)
            bias_SN[row, : len(bias)] = list(bias.values())
        self.bias_ids_SN[slots_S] = self.on_device(ids_SN)
        self.bias_SN[slots_S] = self.on_device(bias_SN)

    def allocate_counts(self) -> None:
        """Allocate the token counts for penalties, for all slots."""
        if self.output_counts_SV is None:
            shape = (self.length_S.shape[0], self.vocab_size)
            self.output_counts_SV = torch.zeros(shape, dtype=torch.int32, device=self.device)
            self.in_prompt_SV = torch.zeros(shape, dtype=torch.bool, device=self.device)

    def _enter_counts(self, sequence: Sequence) -> None:
        self.allocate_counts()
        assert self.output_counts_SV is not None and self.in_prompt_SV is not None
        self.output_counts_SV[sequence.slot].fill_(0)
        prompt = self.on_device(sequence.request.prompt_ids)
        self.in_prompt_SV[sequence.slot].fill_(False).index_fill_(0, prompt, True)

    def limit_drafts(self, limits: Mapping[int, int], by_lookup: Collection[int] = ()) -> None:
        """Set the draft limit of each slot and which slots use prompt lookup; only changes are copied."""
        wanted = np.zeros_like(self._draft_limits)
        wanted[0, list(limits)] = list(limits.values())
        wanted[1, list(by_lookup)] = 1
        if (wanted != self._draft_limits).any():
            limits_S, by_lookup_S = self.on_device(wanted)
            self.draft_limit_S.copy_(limits_S)
            self.by_lookup_S.copy_(by_lookup_S)
            self._draft_limits = wanted

    def cut_drafts(self, cut: Cut) -> None:
        """Set where chains end: at the cut in its slots, nowhere in the others."""
        wanted = self._cut_SN.copy()
        wanted[:, 0] = -np.inf
        wanted[list(cut.slots)] = cut.logs_SN
        if (wanted != self._cut_SN).any():
            self.cut_SN.copy_(self.on_device(wanted))
            self._cut_SN = wanted

    def set_pages(self, sequences: Seq[Sequence]) -> None:
        """Write the page tables of sequences."""
        if sequences:
            slots = [sequence.slot for sequence in sequences]
            self._write(self.tables.full, slots, [sequence.full_pages for sequence in sequences])
            self._write(self.tables.sliding, slots, [sequence.sliding_pages for sequence in sequences])

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
