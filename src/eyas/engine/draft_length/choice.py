"""Draft length: fixed, or for each round and sequence the one that maximises expected throughput, 0 included.

`step_costs` estimates the time of a round, `prompt_costs` that of prompts beside it, `acceptance` the worth of a draft;
`goodput` combines them. This file keeps all up to date; draft lengths that have not been used lately are probed within
1 % of run time. A choice depends only on what was observed, and it never changes a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from statistics import median_low
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from eyas.engine.draft_length.acceptance import Acceptance
from eyas.engine.draft_length.chains import Chains
from eyas.engine.draft_length.confidence import ConfidenceCurve, Cut
from eyas.engine.draft_length.goodput import DraftChoice, best_choice, rate_choice
from eyas.engine.draft_length.prompt_costs import PromptCosts
from eyas.engine.draft_length.step_costs import RoundCosts, Timing
from eyas.engine.sequences.ngram_index import LookupCurve, LookupMatch, LookupOutcome

__all__ = ["AutoDraftLength", "DraftLength", "FixedDraftLength", "RoundOutcome", "RoundTimer", "Tried"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Tried(NamedTuple):
    """The drafts of one sequence in a round: how many were asked for, without those that the token budget cut.

    Fewer are `verified` where a drafter had fewer to offer, or where the device dropped drafts that were not worth
    their row: then `levels` are those of the head's confidence in all drafts that it drew. `lookups` are the outcomes
    that prompt lookup would have had for the committed tokens, with any drafter.
    """

    slot: int
    asked: int
    accepted: int
    verified: int
    by_lookup: bool = False
    levels: Sequence[int] = ()
    lookups: Sequence[LookupOutcome] = ()


class RoundOutcome(NamedTuple):
    """The outcome of a round. `timing` is None where work other than prompts ran in the same step."""

    tried: Sequence[Tried]
    timing: Timing | None


class DraftLength(Protocol):
    """Chooses draft lengths. Sequences are named by their slots; `enter` announces a new sequence in a slot."""

    @property
    def looks_up(self) -> bool:
        """Whether `choose` uses `matches` and `observe` uses `lookups`."""

    def enter(self, slot: int) -> None: ...

    def choose(
        self,
        slots: Sequence[int],
        caps: Sequence[int],
        matches: Sequence[LookupMatch] | None = None,
        *,
        most: int | None = None,
    ) -> DraftChoice:
        """Return draft lengths for the sequences of a round.

        At most `caps` drafts of each can be accepted, and `most` of each fit the round, None without a limit;
        `matches` are those of prompt lookup.
        """

    def cut(self, slots: Sequence[int], choice: DraftChoice) -> Cut:
        """Return the cut: which drafts of a choice are worth their row, by the head's confidence in them."""

    def observe(self, outcome: RoundOutcome) -> None: ...

    def undrafted_s(self, num_sequences: int) -> float | None:
        """Return the seconds of a round without drafts, as measured; None where rounds are not timed."""


class FixedDraftLength:
    looks_up = False

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts

    def enter(self, slot: int) -> None:
        pass

    def choose(
        self,
        slots: Sequence[int],
        caps: Sequence[int],
        matches: Sequence[LookupMatch] | None = None,
        *,
        most: int | None = None,
    ) -> DraftChoice:
        num_drafts = self.num_drafts if most is None else min(self.num_drafts, most)
        return DraftChoice((num_drafts,) * len(slots), num_drafts, (False,) * len(slots), 0.0, 0.0, 0.0)

    def cut(self, slots: Sequence[int], choice: DraftChoice) -> Cut:
        return Cut()

    def observe(self, outcome: RoundOutcome) -> None:
        pass

    def undrafted_s(self, num_sequences: int) -> float | None:
        return None


class AutoDraftLength:
    """Maximises expected tokens per second; probes other draft lengths within a budget."""

    PROBE_SHARE = 0.01  # share of run time for all probes together
    PROBE_PACE = 0.006  # share for regular probes; the rest is for surprises
    CREDIT_ROUNDS = 5  # unspent probe time is capped at that of this many rounds
    PROBE_EVERY = 16  # least rounds between probes of longer chains
    RETIME_OFTEN = 16  # least rounds between two rounds without drafts, where drafts pay
    RETIME_SELDOM = 256  # the bound to which the distance doubles while their times are as expected
    RETIME_SHORTER = 64  # rounds until one draft less than in use is timed again
    AS_EXPECTED = 0.1  # largest relative error of a time that is as expected

    def __init__(
        self,
        max_drafts: int,
        costs: RoundCosts | None = None,
        *,
        has_head: bool = True,
        has_lookup: bool = False,
        cuts: bool = True,
    ) -> None:
        """`cuts`: unverified drafts cost no rows. Where they do, a cut gains nothing."""
        self.cuts = cuts
        self.max_drafts = max_drafts
        self.costs = costs or RoundCosts(max_drafts)
        self.prompts = PromptCosts()
        self.head = Acceptance(max_drafts) if has_head else None
        self.lookup = LookupCurve(max_drafts) if has_lookup else None
        self.confidence = ConfidenceCurve()
        self.chains = Chains(max_drafts)
        self.probes_s = 0.0  # what probes should have cost so far
        self.elapsed_s = 0.0  # what all rounds should have taken
        self._credit_s = 0.0
        self._since_longer = self._since_none = 0
        self._retime_every = self.RETIME_OFTEN
        self._again = False
        self._head_paused = False
        self._best: DraftChoice | None = None

    def fresh(self) -> AutoDraftLength:
        """Return a copy that knows the costs of rounds and nothing else."""
        return AutoDraftLength(
            self.max_drafts,
            self.costs,
            has_head=self.head is not None,
            has_lookup=self.lookup is not None,
            cuts=self.cuts,
        )

    @property
    def looks_up(self) -> bool:
        return self.lookup is not None

    def enter(self, slot: int) -> None:
        if self.head is not None:
            self.head.enter(slot)
            self.confidence.enter(slot)

    def timer(self, *, every: bool) -> RoundTimer | None:
        """Return a timer that chooses at start-up, until its timings go to `learn`; None if costs are known.

        `every`: time all draft lengths at every batch size, because the first use of each is slow.
        """
        if self.costs.is_measured:
            return None
        numbers = range(self.max_drafts + 1)
        some = [k for k in numbers if every or k in {0, 1, 3, self.max_drafts}]
        return RoundTimer(numbers, some, has_head=self.head is not None)

    def learn(self, timings: Sequence[Timing]) -> None:
        self.costs.learn(timings)

    def choose(
        self,
        slots: Sequence[int],
        caps: Sequence[int],
        matches: Sequence[LookupMatch] | None = None,
        *,
        most: int | None = None,
    ) -> DraftChoice:
        seconds, caps_S = self.costs.table(len(slots)), np.asarray(caps)
        most = min(len(seconds) - 1, self.max_drafts if most is None else most)
        seconds = seconds[: most + 1, : len(slots) * most + 1] + self.prompts.per_round_s
        chances_SK = np.zeros((len(slots), most))
        if self.head is not None:
            chances_SK = self.head.chances(np.asarray(slots))[:, :most]
        lookup_SK = None
        if self.lookup is not None and matches is not None and any(match.length for match in matches):
            lookup_SK = self.lookup.chances(matches)[:, :most]
        self._best = best = best_choice(seconds, chances_SK, caps_S, lookup_SK)
        with_cut = self.chains.best_choice(seconds, caps_S) if self.cuts and self.confidence.is_trusted else None
        if with_cut is not None and with_cut.tokens * best.seconds > best.tokens * with_cut.seconds:
            self._best = best = with_cut
        self.elapsed_s += best.seconds
        self._credit_s = min(self._credit_s + self.PROBE_SHARE * best.seconds, self.CREDIT_ROUNDS * best.seconds)
        return self._probe(best, seconds, chances_SK, caps_S, lookup_SK) or best

    def cut(self, slots: Sequence[int], choice: DraftChoice) -> Cut:
        return self.confidence.cut(slots, choice.min_chance) if self.cuts else Cut()

    def _probe(
        self, best: DraftChoice, seconds: Floats, chances_SK: Floats, caps_S: Ints, lookup_SK: Floats | None
    ) -> DraftChoice | None:
        self._since_longer, self._since_none = self._since_longer + 1, self._since_none + 1
        is_again, self._again = self._again, False
        if is_again or (self._since_longer >= self.PROBE_EVERY and self._since_longer % 4 == 0):
            probe = self._longer(best, seconds, chances_SK, caps_S, lookup_SK)
            if probe is not None:
                loss = _loss(probe, best)
                pace = loss / (self.PROBE_PACE * best.seconds)
                if loss <= self._credit_s and (is_again or self._since_longer >= pace):
                    self._again = not is_again and best.head_drafts == 0 and self._is_untimed(probe)
                    self._since_longer = 0
                    return self._paid(probe, best)
        shorter = self._shorter(best, seconds, chances_SK, lookup_SK)
        if shorter is not None and _loss(shorter, best) <= self._credit_s:
            return self._paid(shorter, best)
        if any(best.limits) and self._since_none >= self._retime_every:
            none = rate_choice(seconds, chances_SK, np.zeros_like(caps_S))
            if _loss(none, best) <= self._credit_s:
                self._since_none = 0
                return self._paid(none, best)
        return None

    def _longer(
        self, best: DraftChoice, seconds: Floats, chances_SK: Floats, caps_S: Ints, lookup_SK: Floats | None
    ) -> DraftChoice | None:
        """Return one more draft of the head wherever caps allow it; None if it could not pay even if always accepted.

        Prompt lookup needs no probes: its outcomes are observed with any drafter.
        """
        limits_S, by_lookup_S = np.asarray(best.limits), np.asarray(best.by_lookup)
        longer_S = np.where(by_lookup_S, limits_S, np.minimum(limits_S + 1, np.minimum(caps_S, chances_SK.shape[1])))
        if self.head is None or (longer_S == limits_S).all():
            return None
        probe = rate_choice(seconds, chances_SK, longer_S, lookup_SK, by_lookup_S)
        most = best.tokens + len(limits_S)
        return probe if most / probe.seconds > best.tokens / best.seconds else None

    def _shorter(
        self, best: DraftChoice, seconds: Floats, chances_SK: Floats, lookup_SK: Floats | None
    ) -> DraftChoice | None:
        """Return one draft of the head less, if that was not timed lately: its measured time may be an outlier."""
        num_sequences, head_drafts = len(best.limits), best.head_drafts - 1
        if head_drafts < 1:
            return None
        by_lookup_S = np.asarray(best.by_lookup)
        limits_S = np.where(by_lookup_S, best.limits, np.minimum(best.limits, head_drafts))
        if self.costs.age(num_sequences, num_sequences + int(limits_S.sum()), head_drafts) <= self.RETIME_SHORTER:
            return None
        return rate_choice(seconds, chances_SK, limits_S, lookup_SK, by_lookup_S)

    def _is_untimed(self, probe: DraftChoice) -> bool:
        """Whether a probe needs a second round: a head that paused catches up in the first, which hides the cost."""
        num_sequences = len(probe.limits)
        rows = num_sequences + sum(probe.limits)
        return probe.head_drafts > 0 and self.costs.age(num_sequences, rows, probe.head_drafts) > self.RETIME_SELDOM

    def _is_surprise(self, timing: Timing, num_accepted: int) -> bool:
        """Whether drafts beat drafting none although none was estimated best; then the probe is repeated at once."""
        best, num_sequences = self._best, timing.num_sequences
        if best is None or any(best.limits) or num_accepted == 0:
            return False
        none_s, drafted_s = float(self.costs.table(num_sequences)[0, 0]), self.costs.expected(timing)
        gain, prompts_s = (num_sequences + num_accepted) / num_sequences, self.prompts.per_round_s
        return gain * (none_s + prompts_s) > drafted_s + prompts_s

    def _observe_timing(self, timing: Timing) -> None:
        has_paused, self._head_paused = self._head_paused, timing.head_drafts == 0
        self.prompts.count(timing.num_prompt_rows)
        if timing.num_prompt_rows:
            self._observe_mixed(timing, counts=not (has_paused and timing.head_drafts))
            return
        if timing.num_rows == timing.num_sequences and timing.head_drafts == 0:
            expected = self.costs.expected(timing)
            is_expected = abs(timing.seconds / expected - 1) < self.AS_EXPECTED
            self._retime_every = min(2 * self._retime_every, self.RETIME_SELDOM) if is_expected else self.RETIME_OFTEN
        if timing.head_drafts == 0 or not has_paused:
            self.costs.observe(timing)

    def _observe_mixed(self, timing: Timing, *, counts: bool) -> None:
        """Divide the time of a step with prompts among them and the round, of which either is known already."""
        if not counts or not self.costs.knows_scale:
            return
        left_s = timing.seconds - self.costs.expected(timing)
        if self.prompts.is_known:
            self.costs.observe(timing, self.prompts.seconds(timing.num_prompt_rows))
        self.prompts.observe(timing.num_prompt_rows, left_s)

    def _observe_head(self, head: Acceptance, tried: Sequence[Tried]) -> None:
        """Learn from the head's drafts; if a chain was cut after an accepted draft, the next counts by its chance."""
        slots, asked, accepted, verified, _, levels, _ = zip(*tried, strict=True)
        slots_S, asked_S, accepted_S, verified_S = (np.array(part) for part in (slots, asked, accepted, verified))
        unseen_S = np.zeros(len(tried))
        num_S = np.fromiter(map(len, levels), dtype=np.int64, count=len(tried))
        longest = int(num_S.max())
        if longest:
            is_drawn_SK = np.arange(longest) < num_S[:, None]
            levels_SK = np.zeros((len(tried), longest), dtype=np.int64)
            levels_SK[is_drawn_SK] = np.fromiter(chain.from_iterable(levels), dtype=np.int64, count=int(num_S.sum()))
            by_history_SK = head.chances(slots_S)[:, :longest]
            self.confidence.observe(slots_S, levels_SK, np.minimum(verified_S, num_S), accepted_S, by_history_SK)
            chances_SK = np.take_along_axis(self.confidence.chances(slots_S), levels_SK, axis=1)
            self.chains.add(chances_SK[num_S > 0], num_S[num_S > 0])
            row = ((accepted_S == verified_S) & (verified_S < num_S)).nonzero()[0]
            unseen_S[row] = chances_SK[row, verified_S[row]]
        head.observe(slots_S, asked_S, accepted_S, unseen_S)

    def _paid(self, probe: DraftChoice, best: DraftChoice) -> DraftChoice:
        loss = _loss(probe, best)
        self.probes_s += loss
        self._credit_s -= loss
        return probe

    def observe(self, outcome: RoundOutcome) -> None:
        by_head = [of_one for of_one in outcome.tried if not of_one.by_lookup]
        if self.head is not None and by_head:
            self._observe_head(self.head, by_head)
        if self.lookup is not None:
            self.lookup.observe([token for of_one in outcome.tried for token in of_one.lookups])
        if outcome.timing is not None:
            self._again |= self._is_surprise(outcome.timing, sum(of_one.accepted for of_one in outcome.tried))
            self._observe_timing(outcome.timing)

    def undrafted_s(self, num_sequences: int) -> float | None:
        return float(self.costs.table(num_sequences)[0, 0]) if self.costs.is_measured else None


def _loss(probe: DraftChoice, best: DraftChoice) -> float:
    """Return the seconds that a probe takes beyond the time of as many tokens at the best choice."""
    return max(0.0, probe.seconds - probe.tokens * best.seconds / best.tokens)


class RoundTimer:
    """Runs each draft length a few times at start-up, the same for all sequences, and keeps median times."""

    looks_up = False
    TRIALS = 4  # runs of each; the first pays for allocation and graph capture, and is dropped

    def __init__(self, for_one: Sequence[int], for_several: Sequence[int], *, has_head: bool = True) -> None:
        """`for_one` are the draft lengths to time for one sequence, `for_several` for any larger batch."""
        self.has_head = has_head
        self._for_one, self._for_several = for_one, for_several
        self._trials: dict[int, list[int]] = {}  # draft lengths still to run, by number of sequences
        self._seconds: dict[tuple[int, int, int], list[float]] = {}

    def enter(self, slot: int) -> None:
        pass

    def choose(
        self,
        slots: Sequence[int],
        caps: Sequence[int],
        matches: Sequence[LookupMatch] | None = None,
        *,
        most: int | None = None,
    ) -> DraftChoice:
        num_sequences = len(slots)
        trials = self._trials.get(num_sequences)
        if trials is None:
            numbers = self._for_one if num_sequences == 1 else self._for_several
            if most is not None:
                numbers = sorted({min(number, most) for number in numbers})
            trials = self._trials[num_sequences] = [k for k in numbers for _ in range(self.TRIALS)]
        num_drafts = min(trials.pop() if trials else 0, *caps)
        by_lookup = (not self.has_head,) * num_sequences
        return DraftChoice((num_drafts,) * num_sequences, num_drafts if self.has_head else 0, by_lookup, 0.0, 0.0, 0.0)

    def cut(self, slots: Sequence[int], choice: DraftChoice) -> Cut:
        return Cut()

    def is_done(self, num_sequences: int) -> bool:
        return self._trials.get(num_sequences) == []

    def observe(self, outcome: RoundOutcome) -> None:
        if outcome.timing is not None and not outcome.timing.num_prompt_rows:
            key = outcome.timing[:3]
            self._seconds.setdefault(key, []).append(outcome.timing.seconds)

    def undrafted_s(self, num_sequences: int) -> float | None:
        return None

    @property
    def timings(self) -> list[Timing]:
        return [Timing(*key, median_low(seconds[1:])) for key, seconds in self._seconds.items() if len(seconds) > 1]
