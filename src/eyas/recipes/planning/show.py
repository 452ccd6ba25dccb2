"""Shows all of a plan: the choice, memory as a bar, expected speed, reasons, warnings, evidence, guides, commands."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from eyas.base.units import readable
from eyas.recipes.emit.words import shell
from eyas.recipes.engines import front
from eyas.recipes.plan import Launch, MemoryMap, Note, Plan
from eyas.recipes.planning.ask import LOOPBACK
from eyas.recipes.planning.reasons import against_model
from eyas.recipes.records import CPU
from eyas.recipes.wording import drafting, pays_from, span

__all__ = ["MARKS", "WHAT_FOR", "address", "memory_marks", "show"]

WIDTH = 110
BAR = 72
WHAT_FOR = {"vision": "pictures", "embeddings": "embeddings"}
MARKS = "#=+*%o:~"  # one for each owner, in order; the rest share the last


def show(plan: Plan) -> str:
    """Format as plain text, at most 110 columns where words allow it."""
    sections = [
        _head(plan),
        ("Memory of one GPU" if plan.box.hardware.compute_capability != CPU else "Memory", memory_bar(plan.memory)),
        ("Expected speed (from bytes and bandwidth, not measured)", list(_speed(plan))),
        ("Why", list(_notes(plan.reasons))),
        ("Why not", list(_notes(plan.refused))),
        ("Warnings", list(_notes(plan.warnings))),
        ("Tuning", list(_notes(plan.tuning))),
        ("Evidence", [line for row in plan.evidence for line in _wrapped(f"{row.part}: {row.level}. {row.detail}")]),
        ("Unlike the guides", list(_deviations(plan))),
        ("What would be started", [line for launch in plan.emission.launches for line in _launch(plan, launch)]),
    ]
    return "\n\n".join("\n".join((title, *lines)) for title, lines in sections if lines) + "\n"


def _head(plan: Plan) -> tuple[str, list[str]]:
    choice, box = plan.choice, plan.box
    capability = box.hardware.compute_capability
    gpus = f"{box.num_gpus} x {box.hardware.title}" if box.num_gpus > 1 else box.hardware.title
    return (
        f"{choice.model} on {box.name}: {choice.engine} {choice.version}, {drafting(choice)}",
        [
            f"  {gpus}, {box.architecture}"
            + (f", compute capability {capability}" if box.hardware.is_cuda else "")
            + ("" if box.is_probed else " (from the table, not looked at)"),
            f"  {choice.context} tokens of context, {choice.concurrency} at once, for "
            + (choice.purpose if choice.role == "text" else WHAT_FOR[choice.role])
            + (", with tools" if choice.tools else ""),
            f"  {choice.image or 'a native process'}, {address(plan)}",
        ],
    )


def address(plan: Plan) -> str:
    """Say where clients reach it: on its own machine, and whether others do."""
    listen = plan.choice.listen
    return f"{front.url(plan)}/v1" + ("" if listen in LOOPBACK else f", open to other machines ({listen})")


def memory_bar(memory: MemoryMap) -> list[str]:
    """Draw the bar, then a line for each owner."""
    lines = []
    for index, row in enumerate(memory.rows):
        mark = MARKS[min(index, len(MARKS) - 1)]
        lines.append(f"  {mark} {row.owner:<28} {readable(row.num_bytes):>11}  {row.note}".rstrip())
    free = memory.capacity - memory.needed
    return [
        f"  [{memory_marks(memory, BAR)}]",
        *lines,
        f"  . {'free' if free >= 0 else 'missing':<28} {readable(abs(free)):>11}  of {readable(memory.capacity)}; "
        + (f"{memory.max_tokens} tokens of KV cache fit" if memory.kv_bytes_per_token else "no KV cache is kept"),
        *(f"    {owner:<28} {readable(num_bytes):>11}  {note}".rstrip() for owner, num_bytes, note in _sums(memory)),
    ]


def memory_marks(memory: MemoryMap, width: int) -> str:
    """Draw a mark for each owner's share, `.` for what is free, `|` at the capacity where more is needed."""
    marks, full = "", max(memory.capacity, memory.needed)
    for index, row in enumerate(memory.rows):
        mark = MARKS[min(index, len(MARKS) - 1)]
        marks += mark * max(round(row.num_bytes / full * width), 1 if row.num_bytes else 0)
    end = round(memory.capacity / full * width)
    if memory.needed > memory.capacity:
        marks = marks[:end] + "|" + marks[end + 1 :]
    return f"{marks[:width]:.<{width}}"


def _sums(memory: MemoryMap) -> Iterator[tuple[str, int, str]]:
    if memory.reserved:
        yield "taken at start", memory.reserved, ""
    if memory.host:
        yield "its processes besides", memory.host, "of the same memory, estimate"
    if memory.cap is not None:
        yield "cap", memory.cap, f"--memory; {readable(memory.cap - memory.reserved - memory.host)} below it"


def _speed(plan: Plan) -> Iterator[str]:
    speed, num = plan.speed, plan.choice.concurrency
    if plan.choice.role == "embeddings":
        yield (
            f"  the vector of a text of {plan.choice.context} tokens after {span(speed.first_token_s)} s, ready after "
            f"{span(speed.load_s)} s"
        )
        return
    plain = span(speed.baseline_tokens_per_second)
    if speed.measured is not None:
        yield f"  {against_model(speed.measured)}; what follows is the model's"
    yield f"  {span(speed.tokens_per_second)} tok/s over {num} at once; {plain} without speculation"
    if speed.at_context:
        longer = ", ".join(
            f"{span(one.tokens_per_second)} at {one.context}"
            + (f" (only {one.at_once} at once)" if one.at_once is not None and one.at_once < num else "")
            for one in speed.at_context
        )
        yield f"  with longer contexts {longer} tokens each"
    if plan.choice.head:
        yield f"  speculation x{span(speed.speedup)}; {pays_from(speed)}"
    yield (
        f"  a round reads {speed.round_bytes / 1e9:.2f} GB, a plain step {speed.baseline_bytes / 1e9:.2f} GB; first "
        f"token of a full context after {span(speed.first_token_s)} s, ready after {span(speed.load_s)} s"
    )


def _notes(notes: Iterable[Note]) -> Iterator[str]:
    for note in notes:
        mark = f" [{note.issue}]" if note.issue else ""
        yield from _wrapped(f"{note.text}{mark}" + (f" ({note.source})" if note.source else ""))


def _deviations(plan: Plan) -> Iterator[str]:
    for one in plan.deviations:
        yield from _wrapped(f"{one.guide}: {one.theirs or '(nothing)'} -> {one.ours or '(left out)'}. {one.why}")


def _launch(plan: Plan, launch: Launch) -> Iterator[str]:
    node = plan.choice.nodes[launch.node].name
    where = f"in {launch.container.image}" if launch.container else f"inside {launch.inside}" if launch.inside else ""
    yield f"  {launch.name} on {node} {where}".rstrip()
    words = [f"{variable.name}={shell(variable.value)}" for variable in launch.env]
    words += [shell(word) if "\n" not in str(word) else "'...'" for word in launch.argv]
    yield from _wrapped(" ".join(words), "    ", "      ")


def _wrapped(text: str, first: str = "  - ", rest: str = "    ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
