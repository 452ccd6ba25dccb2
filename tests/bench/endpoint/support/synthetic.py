"""Runs against no endpoint at all, drawn from a seed and shaped like real ones: SIMULATED from the first to the last.

`python -m tests.bench.endpoint.support.synthetic FILE` writes one, to look at its report.
"""

import random
import sys
from itertools import accumulate
from pathlib import Path

from eyas.bench.endpoint.journal import Header, Journal, Run
from eyas.bench.endpoint.records import Chunk, Counts, Lag, Load, Record, Stamp, Window

CATEGORIES = ("chat", "code", "competition mathematics", "long documents", "tool use")
RATES = {"chat": 0.66, "code": 0.82, "competition mathematics": 0.76, "long documents": 0.58, "tool use": 0.71}
SIMULATED = "SIMULATED: drawn at random, no engine ran"


def synthetic_run(
    *, arms=(0, 1, 3), concurrencies=(1, 2, 3, 4, 5, 6, 7, 8), turns=5, seed=1, noise=0.02, per_request=True,
    num_requests=10, stamp=None, names=None, categories=CATEGORIES, slower=1.0, mode="natural",
) -> Run:  # fmt: skip
    """A run whose arms draft K tokens each; with K = 0 first, the arm that others are compared with.

    The step grows with concurrency and K: speculation pays for few conversations and loses for many.
    """
    rng = random.Random(seed)
    windows, now = [], 0.0
    for concurrency in concurrencies:
        for turn in range(turns):
            drift = rng.gauss(1, noise)  # shared by a pair
            for drafts in arms:
                name = (names or {}).get(drafts) or (f"{drafts} drafts" if drafts else "off")
                step_s = 0.0045 * (1 + 0.08 * concurrency) * (1 + drafts * (0.09 + 0.045 * concurrency)) * slower
                step_s *= drift * rng.gauss(1, noise / 2)
                window = _window(
                    rng, name, Load(concurrency=concurrency, mode=mode, max_tokens=512), turn, now, drafts, step_s,
                    num_requests * concurrency, per_request, categories,
                )  # fmt: skip
                windows.append(window)
                now = window.ended_s + 2
    made = Stamp(
        date="2026-11-26T12:00:00Z",
        command="python -m tests.bench.endpoint.support.synthetic",
        eyas="0.1.0",
        commit="0123456789ab",
        client="a test",
        endpoint={w.arm: f"http://127.0.0.1:8000/v1, no engine, {w.arm}" for w in windows},
        hardware="none",
        simulated=SIMULATED,
    )
    header = Header(stamp=stamp or made, settings={"prompts": ["synthetic"], "seed": seed}, run="synthetic")
    return Run(header=header, windows=tuple(windows))


def _window(rng, arm, load, turn, started_s, drafts, step_s, num_requests, per_request, categories):
    free = [started_s + 0.3 * i / load.concurrency for i in range(load.concurrency)]
    records = []
    for number in range(num_requests):
        free.sort()
        record = _record(rng, number, free[0], drafts, step_s, categories)
        free[0] = record.ended_s
        records.append(record)
    counts = [record.counts for record in records if record.counts]
    total = Counts(
        rounds=sum(c.rounds for c in counts),
        accepted=sum(c.accepted for c in counts),
        drafted=sum(c.drafted for c in counts),
        histogram=tuple(map(sum, zip(*(c.histogram for c in counts), strict=True))),
        by_position=tuple(map(sum, zip(*(c.by_position for c in counts), strict=True))),
        source="vllm:spec_decode_num_accepted_tokens_total",
    ) if counts else None  # fmt: skip
    if not per_request:
        records = [Record(**{f: getattr(r, f) for f in r.__struct_fields__ if f != "counts"}) for r in records]
    return Window(
        arm=arm,
        load=load,
        turn=turn,
        started_s=started_s + 0.1,
        ended_s=min(free),
        records=tuple(records),
        lag=Lag(loop_p99_s=0.0004, send_p99_s=0.0006, cpu_share=0.11),
        counts=total,
        energy_j=300 * (min(free) - started_s),
    )


def _record(rng, number, sent_s, drafts, step_s, categories):
    category = categories[number % len(categories)]
    num_tokens = max(24, round(rng.lognormvariate(4.3, 0.3)))
    rate, histogram, by_position = RATES.get(category, 0.7), [0] * (drafts + 1), [0] * drafts
    at_s, tokens, chunks = sent_s + rng.lognormvariate(-2.6, 0.25), 1, []
    steps = [1]
    while tokens < num_tokens:
        accepted = next((i for i in range(drafts) if rng.random() > rate - 0.04 * i), drafts)
        histogram[accepted] += 1
        for position in range(accepted):
            by_position[position] += 1
        steps.append(accepted + 1)
        tokens += accepted + 1
    reasoning = 0.6 * tokens
    for so_far, size in zip(accumulate(steps), steps, strict=True):
        kind = "reasoning" if so_far < reasoning else "text"
        chunks.append(Chunk(at_s=round(at_s, 6), kind=kind, num_chars=4 * size, tokens=so_far))
        at_s += step_s * rng.lognormvariate(0, 0.05) * (8 if rng.random() < 0.004 else 1)
    rounds = sum(histogram)
    counts = Counts(
        rounds=rounds, accepted=sum(k * n for k, n in enumerate(histogram)), drafted=rounds * drafts,
        histogram=tuple(histogram), by_position=tuple(by_position),
    )  # fmt: skip
    return Record(
        prompt=f"{category}/{number}",
        category=category,
        scheduled_s=sent_s,
        sent_s=sent_s,
        ended_s=chunks[-1].at_s,
        chunks=tuple(chunks),
        prompt_tokens=rng.randrange(60, 400),
        output_tokens=tokens,
        reasoning_tokens=round(reasoning),
        finish_reason="stop",
        counts=counts if drafts else None,
    )


def write_journal(path: Path, run: Run) -> None:
    """Write a run as its own file has it."""
    journal = Journal(path)
    journal.begin(run.header)
    for window in run.windows:
        journal.add(window)
    journal.close()


if __name__ == "__main__":
    write_journal(Path(sys.argv[1]), synthetic_run())
