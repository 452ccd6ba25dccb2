"""Answers whose every token is known to be content or syntax, and what a choice makes of them wherever they are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st
from tests.base.support.harmony_cases import BODIES
from tests.base.support.tool_cases import TOOL_BODIES

from eyas.base.harmony.rendering import Message
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import FinishReason, Request, SamplingParams, TokenEvent
from eyas.gateway.turn.choice import ChoiceReader
from eyas.gateway.turn.delta import Delta, Kind
from eyas.gateway.turn.readers import HarmonyReader
from eyas.gateway.turn.stops import Stops

FUNCTIONS = frozenset({"get_weather", "get_current_weather", "f"})
PLACES = ("behind the channel", "in front of the channel", "both", "bare")


@dataclass(repr=False)
class Answer:
    """Ids after `<|start|>assistant`; `owners` has the message of each token that is content, None for syntax."""

    codec: Tokenizer
    ids: list[int] = field(default_factory=list)
    owners: list[int | None] = field(default_factory=list)

    def __repr__(self) -> str:
        return repr(self.codec.decode(self.ids))

    def syntax(self, *parts: str) -> None:
        """Special tokens by their names, or other words of a header."""
        for part in parts:
            ids = [self.codec.special[part]] if part in self.codec.special else self.codec.encode(part)
            self.ids += ids
            self.owners += [None] * len(ids)

    def content(self, text: str, message: int) -> None:
        ids = self.codec.encode(text)
        self.ids += ids
        self.owners += [message] * len(ids)

    def texts(self, cut: int) -> dict[int, str]:
        """What the first `cut` tokens hold of each message."""
        parts: dict[int, list[bytes]] = {}
        for token_id, owner in zip(self.ids[:cut], self.owners, strict=False):
            if owner is not None:
                parts.setdefault(owner, []).append(self.codec.token_bytes(token_id))
        return {owner: b"".join(some).decode(errors="replace") for owner, some in parts.items()}


def turns() -> list[list[Message]]:
    """What the assistant says at a stretch in the conversations of the Harmony tests, each once."""
    found: dict[tuple[Message, ...], None] = {}
    for body in (*BODIES, *TOOL_BODIES):
        turn: list[Message] = []
        for message in (*body, None):
            if message is not None and message.role == "assistant":
                turn.append(message)
            elif turn:
                found[tuple(turn)] = None
                turn = []
    return [list(turn) for turn in found]


def spoken(codec: Tokenizer, messages: Sequence[Message], place: str = PLACES[0]) -> Answer:
    """As gpt-oss writes them, recipients in the given place."""
    answer = Answer(codec)
    for i, message in enumerate(messages):
        if i:
            answer.syntax("<|start|>", "assistant")
        to = "" if message.recipient is None else f" to={message.recipient}"
        bare = to.removeprefix(" to=") if to.startswith(" to=functions.") else to
        answer.syntax({"in front of the channel": to, "both": to, "bare": bare}.get(place, ""))
        if message.channel is not None:
            answer.syntax("<|channel|>", message.channel)
        answer.syntax({"behind the channel": to, "both": to}.get(place, ""))
        if message.content_type is not None:
            special = message.content_type.startswith("<|constrain|>")
            answer.syntax(" ", *["<|constrain|>"] * special, message.content_type.removeprefix("<|constrain|>"))
        answer.syntax("<|message|>")
        answer.content(message.content, i)
        answer.syntax("<|call|>" if message.recipient else "<|return|>" if i == len(messages) - 1 else "<|end|>")
    return answer


CHANNELS = st.sampled_from(["analysis", "commentary", "final", "final", "musing"])
TYPES = st.sampled_from(
    [["<|constrain|>", " json"], ["<|constrain|>", "json"], ["json"], ["code"], ["<|constrain|>"] * 2 + ["json"]]
)
WORDS = ("ALPHA", "GR\u00dc\u00d1E", "12,", '{"A": [1]}', "\U0001f985!")
BODY = st.lists(st.sampled_from(WORDS), min_size=3, max_size=6)


@st.composite
def malformed(draw: st.DrawFn, codec: Tokenizer) -> tuple[Answer, bool]:
    """An answer with headers that a model may write by mistake; whether each body has its <|message|>.

    Headers are in lower case, bodies have none: what leaks, and what is lost, can be seen.
    """
    answer, is_whole, is_ended = Answer(codec), True, True
    for i in range(draw(st.integers(1, 3))):
        if i and (not is_ended or draw(st.integers(0, 4))):
            answer.syntax("<|start|>", *draw(st.sampled_from([["assistant"], ["assistant"], [], ["eagle"]])))
        to = draw(st.sampled_from(["", " to=functions.get_weather", " to=browser.search", " functions.f", "to=f"]))
        place = draw(st.sampled_from(PLACES))
        if place != "behind the channel":
            answer.syntax(to)
        for channel in draw(st.lists(CHANNELS, min_size=1, max_size=2)):
            answer.syntax("<|channel|>", *[channel] * (draw(st.integers(0, 7)) > 0))
        if place != "in front of the channel":
            answer.syntax(to if to.startswith(" ") else f" {to}")
        if draw(st.booleans()):
            answer.syntax(" ", *draw(TYPES))
        has_message = draw(st.integers(0, 4)) > 0
        is_whole &= has_message
        answer.syntax(*["<|message|>"] * draw(st.integers(1, 2)) if has_message else [" "])
        for word in draw(BODY):
            answer.content(f"{word} ", i)
            if has_message and not draw(st.integers(0, 9)):
                answer.syntax(draw(st.sampled_from(["<|message|>", "<|constrain|>", "<|endoftext|>"])))
        is_ended = not has_message or draw(st.integers(0, 4)) > 0
        if is_ended:
            answer.syntax(draw(st.sampled_from(["<|end|>", "<|return|>", "<|call|>", "<|end|>"])))
    return answer, is_whole


def read(codec: Tokenizer, ids: Sequence[int], *, size: int, finish: FinishReason = FinishReason.LENGTH) -> list[Delta]:
    """The deltas of a choice that gets these ids, `size` a round, and then its end."""
    request = Request(request_id="r", prompt_ids=(1,), params=SamplingParams())
    choice = ChoiceReader(request, 0, HarmonyReader(codec, FUNCTIONS), Stops(), ())
    rounds = [tuple(ids[at : at + size]) for at in range(0, len(ids), size)] or [()]
    events = [TokenEvent(request_id="r", choice=0, token_ids=part) for part in rounds[:-1]]
    events.append(TokenEvent(request_id="r", choice=0, token_ids=rounds[-1], finish=finish))
    return [delta for event in events if (delta := choice.take(event, 0.0)) is not None]


def texts_of(deltas: Sequence[Delta]) -> list[tuple[Kind, str]]:
    """Kind and text of each message that is told of."""
    found: dict[int, tuple[Kind, str]] = {}
    for piece in (piece for delta in deltas for piece in delta.pieces):
        found[piece.message] = (piece.kind, found.get(piece.message, (piece.kind, ""))[1] + piece.text)
    return list(found.values())
