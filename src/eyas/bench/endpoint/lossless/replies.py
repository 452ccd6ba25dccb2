"""Answers of two arms to one question, token by token where the endpoint gives tokens, and where they part. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

__all__ = ["Divergence", "Kind", "Reply", "Token", "divergence", "num_compared", "reply_of"]

# near tie: the two tokens are about equally probable, so that a rounding decides. drawn: at a temperature above 0, in
# an engine that draws otherwise where it accepts drafts. unknown: the endpoint gives no log-probabilities there.
Kind = Literal["near tie", "defect", "drawn", "unknown"]
ENDED = "(its end)"
MAX_SHOWN = 60


class Token(Struct, frozen=True, array_like=True):
    """A token by its name (`token_id:N`, else its text) with its log-probability and those of the best by name."""

    name: str
    logprob: float | None = None
    top: dict[str, float] = {}


class Reply(Struct, frozen=True, kw_only=True):
    """An answer. `tokens` are () where the endpoint gives none; `text` is reasoning and answer, to compare otherwise.

    `num_tokens` is the endpoint's own count.
    """

    tokens: tuple[Token, ...] = ()
    text: str = ""
    num_tokens: int | None = None


class Divergence(Struct, frozen=True, kw_only=True):
    """The first difference of two answers, at token `at`, or at character `at` where there are no tokens.

    `gap` is by how much the base's token is more probable than the other arm's, as log-probability of either arm; it is
    infinite, here None with `is_wide`, if the other token is not among the best ones.
    """

    prompt: str
    seed: int | None
    at: int
    unit: Literal["token", "character"]
    base: str
    other: str
    kind: Kind
    gap: float | None = None
    is_wide: bool = False


# What is read of an answer, under OpenAI's names and vLLM's `token_ids`.


class _Top(Struct):
    token: str = ""
    logprob: float = 0.0
    bytes: list[int] | None = None

    @property
    def name(self) -> str:
        """The token's text; halves of a character, which all have one text, by their bytes."""
        return self.token if "\ufffd" not in self.token or self.bytes is None else f"bytes {self.bytes}"


class _Entry(_Top):
    top_logprobs: list[_Top] | None = None


class _Logprobs(Struct):
    content: list[_Entry] | None = None


class _Message(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: msgspec.Raw = msgspec.Raw(b"")


class _Choice(Struct):
    message: _Message
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None


class _Usage(Struct):
    completion_tokens: int | None = None


class _Answer(Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


def reply_of(data: bytes) -> Reply:
    """Read a whole chat completion. Raises msgspec.MsgspecError, or ValueError for one without a choice."""
    answer = msgspec.json.decode(data, type=_Answer)
    if not answer.choices:
        raise ValueError("it has no choice")
    choice = answer.choices[0]
    entries = [_token(one) for one in (choice.logprobs.content if choice.logprobs is not None else None) or ()]
    message = choice.message
    calls = bytes(message.tool_calls).decode()
    parts = (message.reasoning_content or message.reasoning, message.content, "" if calls == "null" else calls)
    num_tokens = None if answer.usage is None else answer.usage.completion_tokens
    tokens = _all(choice.token_ids, entries) if choice.token_ids else entries
    if num_tokens is not None and len(tokens) < num_tokens - 2:  # some count the end, and tokens around it
        tokens = []  # they lack the reasoning
    return Reply(tokens=tuple(tokens), text="\n".join(filter(None, parts)), num_tokens=num_tokens)


def _token(entry: _Entry) -> Token:
    """Return a token with its best. Under speculation llama-server puts 0 for all but the first, and no best."""
    top = {one.name: one.logprob for one in entry.top_logprobs or ()}
    return Token(entry.name, entry.logprob if top else None, top)


def _all(ids: Sequence[int], entries: Sequence[Token]) -> list[Token]:
    """Return a token for each id, with what is known of those that `entries` are: ours has them of the answer alone."""
    names = [f"token_id:{token_id}" for token_id in ids]
    known = [entry.name for entry in entries]
    for start in range(len(names) - len(known), -1, -1):
        if names[start : start + len(known)] == known:
            return [*map(Token, names[:start]), *entries, *map(Token, names[start + len(known) :])]
    return [Token(name) for name in names]


def divergence(
    base: Reply, other: Reply, *, prompt: str, seed: int | None, near_tie: float, draws_otherwise: bool = False
) -> Divergence | None:
    """Return where two answers part; None if they are the same. `near_tie` is the largest gap of one.

    An answer with a seed has no near ties: noise decides there, not a gap. `draws_otherwise`: it comes from an engine
    that promises no more than its distribution.
    """
    has_tokens = bool(base.tokens and other.tokens)
    ours, theirs = (_names(base), _names(other)) if has_tokens else (base.text, other.text)
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if at is None:
        if len(ours) == len(theirs):
            return None
        at = min(len(ours), len(theirs))
    gap, is_wide = _gap(base.tokens, other.tokens, at) if has_tokens else (None, False)
    kind: Kind = "drawn"
    if not draws_otherwise:
        kind = "defect" if seed is not None else _kind(gap, is_wide, near_tie)
    return Divergence(
        prompt=prompt,
        seed=seed,
        at=at,
        unit="token" if has_tokens else "character",
        base=_shown(ours, at),
        other=_shown(theirs, at),
        kind=kind,
        gap=gap,
        is_wide=is_wide,
    )


def num_compared(base: Reply, other: Reply, found: Divergence | None) -> int:
    """Return how many tokens were compared: up to the first difference and with it; of texts about that many.

    An answer without tokens counts as one, which is its end.
    """
    whole = max(1, *(reply.num_tokens or len(reply.tokens) for reply in (base, other)))
    if found is None:
        return whole
    if found.unit == "token":
        return found.at + 1
    longest = max(len(base.text), len(other.text))
    return max(1, whole * found.at // longest)


def _names(reply: Reply) -> list[str]:
    return [token.name for token in reply.tokens]


def _shown(items: Sequence[str], at: int) -> str:
    """Return a token, or the text from a character on."""
    if at >= len(items):
        return ENDED
    return items[at : at + MAX_SHOWN] if isinstance(items, str) else items[at]


def _kind(gap: float | None, is_wide: bool, near_tie: float) -> Kind:
    if is_wide:
        return "defect"
    if gap is None:
        return "unknown"
    return "near tie" if gap <= near_tie else "defect"


def _gap(base: Sequence[Token], other: Sequence[Token], at: int) -> tuple[float | None, bool]:
    """Return the gap of two tokens by an arm that knows the best ones there, and whether one is not among them."""
    for mine, theirs in ((base, other), (other, base)):
        if at >= len(mine) or not mine[at].top or mine[at].logprob is None:
            continue
        here = mine[at]
        if at >= len(theirs):  # its end has no name: the runner-up is the nearest that it can be
            ranked = sorted(here.top.values(), reverse=True)
            return (ranked[0] - ranked[1], False) if len(ranked) > 1 else (None, True)
        rival = here.top.get(theirs[at].name)
        assert here.logprob is not None
        return (None, True) if rival is None else (abs(here.logprob - rival), False)
    return None, False
