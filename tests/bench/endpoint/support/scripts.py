"""Answers as servers stream them: waits and events, and what a truthful client must have noted of them."""

import json
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["SCRIPTS", "Expected", "Script", "Send", "chunk", "expected"]


@dataclass(frozen=True)
class Send:
    """After `wait_s` one write of these events; `chunks` are (kind, characters, tokens so far) of those with text."""

    wait_s: float
    events: tuple[dict | str, ...]
    chunks: tuple[tuple[str, int, int | None], ...] = ()

    @property
    def data(self):
        return b"".join(b"data: " + _text(event).encode() + b"\n\n" for event in self.events)


@dataclass(frozen=True)
class Script:
    """An answer of `tokens` tokens; it is cut off after its sends if it `resets`."""

    sends: tuple[Send, ...]
    tokens: int
    reasoning: int = 0
    resets: bool = False


@dataclass(frozen=True)
class Expected:
    """Figures of an answer in seconds from when it was asked, by §2.5's formulas from the server's own times."""

    first_text_s: float
    first_final_s: float | None
    end_to_end_s: float
    tpot_s: float | None
    gaps_s: tuple[float, ...]


def expected(chunks, tokens, hidden=0):
    """Compute them from (seconds since the request, kind, tokens so far) of each chunk with text."""
    times = [at for at, _, _ in chunks]
    first = 1 if chunks[0][2] is None else chunks[0][2]
    after = tokens - hidden - first
    return Expected(
        first_text_s=times[0],
        first_final_s=next((at for at, kind, _ in chunks if kind == "text"), None),
        end_to_end_s=times[-1],
        tpot_s=(times[-1] - times[0]) / after if after > 0 and len(times) > 1 else None,
        gaps_s=tuple(b - a for a, b in pairwise(times)),
    )


def _text(event):
    return event if isinstance(event, str) else json.dumps(event)


def chunk(finish=None, tokens=None, **delta):
    """Return an event of a chat completion."""
    event = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return event if tokens is None else {**event, "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}


def _usage(tokens, reasoning=0, cached=0):
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {}
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "prompt_tokens_details": {"cached_tokens": cached}}
    return {"choices": [], "usage": {**usage, **details}}


ROLE = Send(1 / 64, (chunk(role="assistant", content=""),))
DONE = "[DONE]"


def _said(wait_s, text, name="content", kind="text", tokens=None):
    return Send(wait_s, (chunk(tokens=tokens, **{name: text}),), ((kind, len(text), tokens),))


def _end(tokens, wait_s=0.0, **details):
    return Send(wait_s, (chunk("stop"), _usage(tokens, **details), DONE))


SCRIPTS = {
    "several tokens a chunk": Script(
        (ROLE, _said(1 / 32, "One two three "), *(_said(1 / 64, "four five six ") for _ in range(7)), _end(24)), 24
    ),
    "late usage": Script(
        (ROLE, _said(1 / 32, "Yes."), _said(1 / 64, "No."), Send(0.0, (chunk("stop"),)), _end(2, wait_s=1 / 8)), 2
    ),
    "reasoning first": Script(
        (
            ROLE,
            *(_said(1 / 32, "hm ", "reasoning_content", "reasoning") for _ in range(4)),
            *(_said(1 / 64, "so ") for _ in range(3)),
            _end(9, reasoning=5),
        ),
        9,
        reasoning=5,
    ),
    "hidden reasoning": Script(
        (Send(1 / 4, (chunk(role="assistant"),)), *(_said(1 / 64, "so ") for _ in range(5)), _end(25, reasoning=20)),
        25,
        reasoning=20,
    ),
    "counts along": Script(
        (
            Send(1 / 64, (chunk(role="assistant", content="", tokens=0),)),
            *(_said(1 / 32, "abcd " * 2, tokens=4 * number) for number in range(1, 6)),
            _end(21),
        ),
        21,
    ),
    "stall": Script((ROLE, _said(1 / 64, "a"), _said(1 / 64, "b"), _said(1 / 2, "c"), _said(1 / 64, "d"), _end(4)), 4),
    "two events in a write": Script(
        (
            ROLE,
            Send(1 / 64, (chunk(content="a"), chunk(content="bc")), (("text", 1, None), ("text", 2, None))),
            Send(1 / 64, (chunk(content="d"), chunk(content="e")), (("text", 1, None), ("text", 1, None))),
            _end(5),
        ),
        5,
    ),
    "a call": Script(
        (
            ROLE,
            Send(
                1 / 64,
                (chunk(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]),),
                (("call", 0, None),),
            ),
            Send(
                1 / 64, (chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"a": 1}'}}]),), (("call", 8, None),)
            ),
            Send(0.0, (chunk("tool_calls"), _usage(12), DONE)),
        ),
        12,
    ),
    "reset": Script((ROLE, _said(1 / 64, "a"), _said(1 / 64, "b")), 2, resets=True),
}
