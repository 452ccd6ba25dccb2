"""Shows a plan on one screen of 24 lines and 100 columns: verdict, memory, speed, the gravest warnings, the command.

Everything else is in `show.py`. What has to be cut ends in `...`, and the last line says how to see it whole.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from eyas.base.units import readable
from eyas.recipes.advice.issues import known_issues
from eyas.recipes.emit.words import assignments, shell
from eyas.recipes.plan import Launch, MemoryMap, Note, Plan, Range
from eyas.recipes.planning.show import MARKS, WHAT_FOR, address, memory_marks
from eyas.recipes.wording import drafting, span

__all__ = ["COLUMNS", "LINES", "screen"]

LINES, COLUMNS = 24, 100
BAR = 60
COMMAND_LINES = 9  # at most, more is cut
WARNING_LINES = 2  # of one warning
SEVERITIES = ("critical", "high", "config", "behaviour", "performance")  # others come after
CUT = " ..."


def screen(plan: Plan) -> str:
    """Format as plain text: at most LINES lines of at most COLUMNS columns."""
    head = [*_verdict(plan), *_memory(plan.memory), *_speed(plan)]
    command = _command(plan)
    room = LINES - len(head) - len(command) - 1
    warnings = _warnings(plan.warnings, room)
    last = "--explain: reasons, all warnings, evidence    --emit shell --out DIR: files    --json: everything"
    return "\n".join([*head, *warnings, *command, last]) + "\n"


def _verdict(plan: Plan) -> Iterator[str]:
    choice, box = plan.choice, plan.box
    yield _cut(f"{choice.model} on {box.name}: {choice.engine} {choice.version}, {drafting(choice)}")
    gpus = f"{box.num_gpus} x {box.hardware.title}" if box.num_gpus > 1 else box.hardware.title
    use = choice.purpose if choice.role == "text" else WHAT_FOR[choice.role]
    where = "as a process" if choice.image is None else f"in {choice.image}"
    yield _cut(f"  {gpus}: {choice.context} tokens of context, {choice.concurrency} at once, for {use}")
    yield _cut(f"  {address(plan)}, {where}")
    yield from _few(_why(plan), 3, "  why: ", "       ")


def _why(plan: Plan) -> str:
    """Give in one sentence the reason for this engine, and for its number of drafts."""
    texts = [note.text for note in plan.reasons]
    about = re.compile(r"no speculation: |(\d+|auto) draft tokens? ")
    drafts = [text.split(": it pays")[0] for text in texts[1:] if about.match(text)]
    return "; ".join([*texts[:1], *drafts[:1]])


def _memory(memory: MemoryMap) -> Iterator[str]:
    bar = memory_marks(memory, BAR)
    taken, over = readable(memory.needed), "" if memory.fits else ", some wait"
    yield _cut(f"  [{bar}] {taken} of {readable(memory.capacity)}{over}")
    legend = [
        f"{MARKS[min(number, len(MARKS) - 1)]} {row.owner} {readable(row.num_bytes)}"
        for number, row in enumerate(memory.rows)
    ]
    if memory.reserved > memory.needed:
        legend.append(f"taken at start {readable(memory.reserved)}")
    if memory.cap is not None:
        legend.append(f"--memory {readable(memory.cap)}")
    yield from _few(", ".join(legend), 3, "   ", "   ")


def _speed(plan: Plan) -> Iterator[str]:
    speed, choice = plan.speed, plan.choice
    first, ready = span(speed.first_token_s), span(speed.load_s)
    if choice.role == "embeddings":
        yield f"  expected: the vector of {choice.context} tokens after {first} s; ready after {ready} s"
        return
    found = speed.measured
    together = speed.tokens_per_second
    if found is not None:
        rate = found.tokens_per_second
        together = found.interval or Range(low=rate, high=rate)
    num = min(choice.concurrency, speed.at_once or choice.concurrency)
    each = Range(low=together.low / num, high=together.high / num)
    both = f"{span(each)} tok/s for each of {num}, {span(together)} together" if num > 1 else f"{span(together)} tok/s"
    speedup = speed.speedup if found is None else found.speedup
    gain = f"; speculation x{span(speedup)}" if choice.head and speedup is not None else ""
    yield _cut(f"  {'expected, not measured' if found is None else f'measured here on {found.date}'}: {both}")
    yield _cut(f"  first token of a full context after {first} s; ready after {ready} s{gain}")


def _warnings(notes: tuple[Note, ...], room: int) -> list[str]:
    """Return the gravest that fit into `room` lines; the heading counts those that do not."""
    grave = {issue.name: issue.severity for issue in known_issues()}
    order = sorted(notes, key=lambda note: _rank(grave.get(note.issue, "")))
    shown: list[str] = []
    left = len(order)
    for note in order:
        lines = list(_few(f"{f'[{note.issue}] ' if note.issue else ''}{note.text}", WARNING_LINES, "  - ", "    "))
        if len(shown) + len(lines) > room - 1:
            break
        shown += lines
        left -= 1
    if not notes:
        return []
    more = f" ({left} more with --explain)" if left else ""
    return [f"warnings{more}:", *shown]


def _rank(severity: str) -> int:
    """Return its place: what has no severity is about the choice itself and comes before config."""
    return SEVERITIES.index(severity) if severity in SEVERITIES else 2


def _command(plan: Plan) -> list[str]:
    """Write the words of the engine's server; of a container what runs in it."""
    server = plan.emission.server
    others = len(plan.emission.launches) - 1
    title = "command:" if not others else f"command ({others} more launch{'es' * (others > 1)} with --explain):"
    return [title, *_few(" ".join(_words(server)), COMMAND_LINES, "  ", "    ")]


def _words(launch: Launch) -> Iterator[str]:
    if launch.container is None and launch.inside is None:
        yield from assignments(launch.env)
    for word in launch.argv:
        yield "'...'" if "\n" in str(word) else shell(word)


def _few(text: str, most: int, first: str, rest: str) -> Iterator[str]:
    """Wrap to at most `most` lines, with a sign at the end where there was more."""
    lines = textwrap.wrap(text, COLUMNS, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: COLUMNS - len(CUT)].rsplit(" ", 1)[0] + CUT]
    yield from lines


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else line[: COLUMNS - len(CUT)] + CUT
