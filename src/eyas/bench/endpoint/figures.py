"""Figures of a window, computed from its records: one definition each, printed with every report.

t0 is when a request was due, t1 and tn are its first and last chunk with text of any kind (reasoning, answer, call), N
is the number of tokens that `usage` counts, n1 of them in the first chunk. Chunks are never taken for tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from eyas.bench.endpoint.records import Chunk, Record, Window
from eyas.bench.stats import percentile

__all__ = [
    "DEFINITIONS",
    "Figures",
    "Slo",
    "arrived_tokens",
    "end_to_end_s",
    "figures_of",
    "first_final_s",
    "first_text_s",
    "gaps_s",
    "percentiles",
    "tpot_s",
]

DEFINITIONS = """\
t0          when a request was due: by the clock (open loop), or when the client came to it (closed loop)
TTFT        from t0 to t1, the first chunk with text: reasoning, answer or call; a role alone is none
TTFT final  from t0 to the first chunk of the answer itself, after the reasoning; `-` where none came
E2E         from t0 to tn, the last chunk with text
TPOT        (tn - t1) / (N - n1): N tokens by the server's `usage`, n1 of them in the first chunk; where the server does
            not count along, n1 is taken for 1, marked ~: too small by what else the first chunk holds
tok/s user  1 / TPOT: what one conversation gets, without the wait for its first token
tok/s       tokens that arrived in the steady part over its length; where the server does not count along, the tokens of
            an answer are spread over its chunks by their characters
gap         between two chunks of an answer: under speculation about a round, not a token
tok/chunk   N over the chunks with text
goodput     measured requests that meet every limit of --slo, a second
cached      share of prompt tokens that the server had from its prefix cache, by `usage`"""


class Slo(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits in seconds that a good request keeps; None is no limit."""

    ttft: float | None = None
    ttft_final: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def is_met(self, record: Record) -> bool:
        """Return whether a whole answer keeps all limits; an answer without final text misses that for it."""
        if record.error is not None:
            return False
        tpot = tpot_s(record)
        return (
            _within(first_text_s(record), self.ttft)
            and _within(first_final_s(record), self.ttft_final)
            and (tpot is None or _within(tpot, self.tpot))
            and _within(end_to_end_s(record), self.e2e)
        )


class Figures(Struct, frozen=True, kw_only=True):
    """Figures of one window; times in seconds, one for each measured request that has it, in order of time due.

    None is what the server does not say. `is_exact`: n1 of each TPOT is the server's.
    """

    seconds: float
    num_measured: int
    num_failed: int
    num_short: int  # of fixed length, but ended before
    first_text_s: tuple[float, ...]
    first_final_s: tuple[float, ...]
    end_to_end_s: tuple[float, ...]
    tpot_s: tuple[float, ...]
    is_exact: bool
    gaps_s: tuple[float, ...]
    tokens_per_s: float | None
    finished_tokens_per_s: float | None  # tokens of the answers that ended in the steady part, over its length
    tokens_per_chunk: float | None
    good_per_s: float | None
    cached_share: float | None


def figures_of(window: Window, slo: Slo | None = None) -> Figures:
    """Compute the figures of a window."""
    seconds = window.ended_s - window.started_s
    measured = [record for record in window.records if record.is_measured]
    whole = [record for record in measured if record.error is None]
    counted = [record for record in whole if record.output_tokens is not None]
    per_token = [value for record in whole if (value := tpot_s(record)) is not None]
    with_chunks = [record for record in counted if record.chunks]
    cached = [record for record in whole if record.cached_tokens is not None and record.prompt_tokens]
    good = None if slo is None else sum(slo.is_met(record) for record in measured)
    return Figures(
        seconds=seconds,
        num_measured=len(measured),
        num_failed=len(measured) - len(whole),
        num_short=sum((one.output_tokens or 0) < window.load.max_tokens for one in counted)
        if window.load.mode == "fixed"
        else 0,
        first_text_s=_known(first_text_s(record) for record in whole),
        first_final_s=_known(first_final_s(record) for record in whole),
        end_to_end_s=_known(end_to_end_s(record) for record in whole),
        tpot_s=tuple(per_token),
        is_exact=bool(per_token) and all(one.chunks[0].tokens is not None for one in whole if tpot_s(one) is not None),
        gaps_s=tuple(gap for record in whole for gap in gaps_s(record)),
        tokens_per_s=_rate(window, seconds),
        finished_tokens_per_s=_finished_rate(window, seconds),
        tokens_per_chunk=_ratio(
            sum(_visible(record) for record in with_chunks), sum(len(record.chunks) for record in with_chunks)
        ),
        good_per_s=None if good is None else _ratio(good, seconds),
        cached_share=_ratio(
            sum(one.cached_tokens or 0 for one in cached), sum(one.prompt_tokens or 0 for one in cached)
        ),
    )


def first_text_s(record: Record) -> float | None:
    """Return the time from when a request was due to its first text of any kind."""
    return record.chunks[0].at_s - record.scheduled_s if record.chunks else None


def first_final_s(record: Record) -> float | None:
    """Return the time from when a request was due to the first text of its answer."""
    return next((chunk.at_s - record.scheduled_s for chunk in record.chunks if chunk.kind == "text"), None)


def end_to_end_s(record: Record) -> float | None:
    """Return the time from when a request was due to its last text."""
    return record.chunks[-1].at_s - record.scheduled_s if record.chunks else None


def gaps_s(record: Record) -> list[float]:
    """Return the times between one chunk and the next."""
    return [after.at_s - before.at_s for before, after in pairwise(record.chunks)]


def tpot_s(record: Record) -> float | None:
    """Return the time for each token after the first chunk; None for fewer than two chunks, and without usage."""
    if record.output_tokens is None or len(record.chunks) < 2:
        return None
    first = record.chunks[0]
    num_after = _visible(record) - (1 if first.tokens is None else first.tokens)
    return (record.chunks[-1].at_s - first.at_s) / num_after if num_after > 0 else None


def arrived_tokens(record: Record, start: float, end: float) -> float:
    """Return how many tokens of a whole answer arrived from `start` to before `end`; 0 for one without usage.

    Where its chunks count along these are the server's numbers; what the last chunk does not count came with it.
    """
    total = 0 if record.output_tokens is None else _visible(record)
    chunks = record.chunks
    if not total or not chunks:
        return 0.0
    if start <= chunks[0].at_s and chunks[-1].at_s < end:
        return float(total)
    return sum(
        tokens for chunk, tokens in zip(chunks, _spread(chunks, total), strict=True) if start <= chunk.at_s < end
    )


def _spread(chunks: Sequence[Chunk], total: int) -> list[float]:
    """Return the tokens of each chunk: the server's, else in proportion to characters."""
    counts = [chunk.tokens for chunk in chunks]
    known = [count for count in counts if count is not None]
    if len(known) == len(chunks):
        return [float(after - before) for before, after in pairwise([0, *known[:-1], max(total, known[-1])])]
    num_chars = sum(chunk.num_chars for chunk in chunks)
    if num_chars == 0:
        return [total / len(chunks)] * len(chunks)
    return [total * chunk.num_chars / num_chars for chunk in chunks]


def _visible(record: Record) -> int:
    """Return the tokens whose text came: a server that hides the reasoning counts it all the same."""
    total = record.output_tokens or 0
    if record.reasoning_tokens and all(chunk.kind != "reasoning" for chunk in record.chunks):
        return max(total - record.reasoning_tokens, 0)
    return total


def _rate(window: Window, seconds: float) -> float | None:
    whole = [record for record in window.records if record.error is None]
    if seconds <= 0 or any(record.output_tokens is None for record in whole):
        return None
    return sum(arrived_tokens(record, window.started_s, window.ended_s) for record in whole) / seconds


def _finished_rate(window: Window, seconds: float) -> float | None:
    whole = [
        record
        for record in window.records
        if record.error is None and window.started_s <= record.ended_s < window.ended_s
    ]
    if seconds <= 0 or any(record.output_tokens is None for record in whole):
        return None
    return sum(record.output_tokens or 0 for record in whole) / seconds


def _within(value: float | None, limit: float | None) -> bool:
    return limit is None or (value is not None and value <= limit)


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def percentiles(values: Sequence[float], percents: Sequence[float] = (50, 90, 99)) -> dict[str, float] | None:
    """Return percentiles by nearest rank under their names (`p50`); None of nothing."""
    return {f"p{percent:g}": percentile(values, percent) for percent in percents} if values else None
