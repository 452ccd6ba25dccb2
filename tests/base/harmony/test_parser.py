"""The Harmony parser against openai-harmony's strict one, and what it keeps of output that one rejects."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.base.support.harmony_cases import CASES, conversation, from_reference, say, think

from eyas.base.harmony.parser import MessageDone, StreamParser, TextDelta, is_addressed
from eyas.base.harmony.rendering import Message, render_conversation
from eyas.base.tokens.tokenizer import CONTROL_TOKENS

SPLIT = r"(<\|(?:start|message|channel|constrain|end|return|call)\|>)"


def spelled(codec, text: str) -> list[int]:
    """Ids of text in which control tokens are spelled out."""
    ids: list[int] = []
    for part in re.split(SPLIT, text):
        ids += [codec.special[part]] if part in codec.special else codec.encode(part)
    return ids


def parse(codec, ids, *, role="assistant", cuts=()) -> list[Message]:
    """All messages, after checking that the events tell of the same ones."""
    parser = StreamParser(codec, role=role)
    bounds = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    events = [event for start, end in pairwise(bounds) for event in parser.feed(ids[start:end])]
    events += parser.finish()
    assert parser.finish() == []
    texts: list[list[str]] = [[]]
    for event in events:
        assert event.index == len(texts) - 1
        if isinstance(event, TextDelta):
            assert event.text
            texts[-1].append(event.text)
            header = event
        else:
            assert "".join(texts[-1]) == event.message.content
            if texts[-1]:
                seen = header.role, header.channel, header.recipient
                assert seen == (event.message.role, event.message.channel, event.message.recipient)
            texts.append([])
    assert [event.message for event in events if isinstance(event, MessageDone)] == list(parser.messages)
    return list(parser.messages)


def strict(harmony, ids, role) -> list[Message] | None:
    """What openai-harmony's strict parser makes of it.

    None if it refuses, or reads special tokens as text: in content, and where they stand in a header by mistake.
    """
    import openai_harmony as oh

    if not has_special_in_place(harmony, ids, role):
        return None
    try:
        theirs = harmony.parse_messages_from_completion_tokens(ids, oh.Role(role) if role else None, strict=True)
    except oh.HarmonyError:
        return None
    return [from_reference(message) for message in theirs]


def has_special_in_place(harmony, ids, role) -> bool:
    """Whether content has no special tokens, and headers none but one <|channel|> and <|constrain|>."""
    start, message, channel, constrain, *ends = (
        harmony.encode(name, allowed_special="all")[0] for name in CONTROL_TOKENS
    )
    first = harmony.encode("<|startoftext|>", allowed_special="all")[0]  # special tokens stand behind all others
    where, channels = "between" if role is None else "header", 0
    for token_id in ids:
        if where == "between":
            where, channels = ("header", 0) if token_id == start else (where, 0)
        elif where == "header" and token_id == message:
            where = "content"
        elif where == "header":
            channels += token_id == channel
            if channels > 1 or (token_id >= first and token_id not in (channel, constrain)):
                return False
        elif token_id in ends:
            where = "between"
        elif token_id >= first:
            return False
    return True


def final(text: str, **kw) -> Message:
    return Message(role="assistant", content=text, **({"channel": "final"} | kw))


ACCEPTED = [
    "<|channel|>final<|message|>Hello<|return|>",
    "<|channel|>final<|message|>cut off",
    "<|message|>no channel<|end|>",
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.<|return|>",
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
    " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
    " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
    "<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>",
    "<|channel|>commentary to=functions.f code<|message|>{}<|call|>",
    "<|channel|>analysis to=python code<|message|>print(1)\n<|call|>",
    "<|channel|>analysis code<|message|>lone word<|call|>",
    "<|channel|>commentary <|constrain|>json<|message|>no recipient<|end|>",
    "assistant<|channel|>final<|message|>role again<|return|>",
    "<|channel|>final<|message|><|return|>",
    "<|channel|>final\n<|message|>x<|end|><|start|>functions.f to=assistant<|channel|>commentary<|message|>1<|end|>",
    "<|channel|>final<|message|>x<|end|><|start|>to=assistant<|message|>1<|end|><|start|>tool<|message|>2<|end|>",
    "<|channel|>final<|message|>x<|end|><|start|>user:bob to=assistant<|message|>1<|end|>",
    "\u00a0<|channel|>final\u00a0<|message|>x<|end|><|start|>\u2003assistant<|channel|>final<|message|>y",
    "<|channel|>final\x1cx<|message|>white space to Python only<|end|>",
    "\x1cword\x1c<|channel|>final<|message|>white space to Python only<|end|>",
    " assistant<|channel|>final<|message|>to oneself<|end|>",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted_output_is_read_as_openai_harmony_does(harmony, o200k, text):
    ids = spelled(o200k, text)
    expected = strict(harmony, ids, "assistant")
    assert expected is not None
    assert parse(o200k, ids) == parse(o200k, ids, cuts=range(len(ids))) == expected
    after_start = spelled(o200k, f"<|start|>assistant{text}")
    expected = strict(harmony, after_start, None)
    if expected is not None:
        assert parse(o200k, after_start, role=None) == expected


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_rendered_conversations_are_read_as_openai_harmony_does(harmony, o200k, case):
    messages = conversation(*case)
    ids = render_conversation(o200k, messages, purpose="history", drop_analysis=False)
    ours = parse(o200k, ids, role=None, cuts=range(0, len(ids), 3))
    theirs = strict(harmony, ids, None)
    # That one refuses role:name, and a tool's name with nothing behind it.
    assert theirs == ours or (theirs is None and any(message.name for message in messages))
    if not any(message.role == "tool" and message.recipient is None for message in messages):
        assert ours == [replace(m, recipient=None) if m.recipient == "all" else m for m in messages]


MALFORMED = {
    "nothing": ("", []),
    "only the role again": ("assistant", []),
    "plain text": ("Hello there.\n\nBye", [Message(role="assistant", content="Hello there.\n\nBye")]),
    "plain text, ended": ("set to=5 now<|return|>", [Message(role="assistant", content="set to=5 now")]),
    "channel without message": ("<|channel|>final Hello to=you<|return|>", [final("Hello to=you")]),
    "cut off in the header": ("<|channel|>comm", []),
    "cut off in a recipient": ("<|channel|>commentary to=function", []),
    "cut off in a recipient behind words": (
        "<|channel|>commentary so I call to=function",
        [final("so I call", channel="commentary")],
    ),
    "cut off in a content": (
        '<|channel|>commentary to=functions.f <|constrain|>json{"a": 1, "b',
        [final('{"a": 1, "b', channel="commentary", recipient="functions.f", content_type="<|constrain|>json")],
    ),
    "a content without <|message|>": (
        "<|channel|>analysisWe need to answer.<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
        [think("We need to answer."), final("b")],
    ),
    "arguments without <|message|>": (
        '<|channel|>commentary to=functions.f <|constrain|>json{"a": "to=b"}<|call|>',
        [final('{"a": "to=b"}', channel="commentary", recipient="functions.f", content_type="<|constrain|>json")],
    ),
    "two channels": ("<|channel|>analysis<|channel|>final<|message|>b<|return|>", [final("b")]),
    "no <|end|>": (
        "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b<|return|>",
        [think("a"), final("b")],
    ),
    "no <|end|> and no <|start|>": (
        "<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>",
        [think("a"), final("b")],
    ),
    "special tokens in the content": (
        "<|message|><|channel|>final<|message|>a<|message|>b<|constrain|>c<|return|>",
        [final("", channel=None), final("abc")],
    ),
    "cut off at the next header": ("<|channel|>analysis<|message|>a<|end|><|start|>assistant", [think("a")]),
    "cut off at <|start|>": ("<|channel|>analysis<|message|>a<|end|><|start|>", [think("a")]),
    "words too many": (
        "<|channel|>final and so on<|message|>Hello<|return|>",
        [final("and so on"), final("Hello")],
    ),
    "words before a call": (
        "<|channel|>commentary so I call to=functions.f <|constrain|>json<|message|>{}<|call|>",
        [
            final("so I call", channel="commentary"),
            final("{}", channel="commentary", recipient="functions.f", content_type="<|constrain|>json"),
        ],
    ),
    "space before the type": (
        "<|channel|>commentary to=functions.f <|constrain|> json<|message|>{}<|call|>",
        [final("{}", channel="commentary", recipient="functions.f", content_type="<|constrain|>json")],
    ),
    "unknown author": (
        "<|channel|>analysis<|message|>a<|end|><|start|>eagle<|channel|>final<|message|>b<|end|>",
        [think("a"), final("b", name="eagle")],
    ),
    "no author": (
        "<|channel|>analysis<|message|>a<|end|><|start|><|channel|>final<|message|>b<|end|>",
        [think("a"), final("b")],
    ),
    "no channel name": (
        "<|channel|><|message|>b<|end|>",
        [final("b", channel=None)],
    ),
    "missing start": (
        "<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>b<|return|>",
        [think("a"), final("b")],
    ),
    "missing start and author": (
        "<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b<|return|>",
        [think("a"), final("b")],
    ),
    "missing start, author and channel": (
        "<|channel|>analysis<|message|>a<|end|><|message|>b<|return|>",
        [think("a"), final("b", channel=None)],
    ),
    "text between messages": (
        "<|channel|>analysis<|message|>a<|end|>lost?<|start|>assistant<|channel|>final<|message|>b<|return|>more",
        [think("a"), final("lost?", channel=None), final("b"), final("more", channel=None)],
    ),
    "two ends": ("<|channel|>final<|message|>a<|end|><|return|>", [say("a")]),
    "headers that end without a message": (
        "one<|end|>two<|start|>assistant<|channel|>final three<|start|>user four<|start|>assistant five of 5"
        "<|channel|>final",
        [
            final("one", channel=None),
            final("two", channel=None),
            final("three"),
            Message(role="user", content="four"),
            final("five of 5"),
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_output_ends_up_in_messages(small, text, expected):
    ids = spelled(small, text)
    assert parse(small, ids) == expected
    assert parse(small, ids, cuts=range(len(ids))) == expected


@pytest.mark.parametrize(("text", "expected"), MALFORMED.values(), ids=MALFORMED)
def test_openai_harmony_refuses_what_we_call_malformed(harmony, o200k, text, expected):
    ids = spelled(o200k, text)
    assert parse(o200k, ids) == expected
    assert strict(harmony, ids, "assistant") in (None, expected)


def test_ends_and_deltas(small):
    parser = StreamParser(small)
    events = parser.feed(spelled(small, "<|channel|>analysis<|message|>ab<|end|><|start|>assistant<|channel|>fi"))
    delta = TextDelta(index=0, role="assistant", channel="analysis", recipient=None, text="ab")
    assert events == [delta, MessageDone(index=0, message=think("ab"), end="<|end|>")]
    assert parser.feed(spelled(small, "nal<|message|>")) == []
    assert [event.text for event in parser.feed(spelled(small, "So"))] == ["So"]
    assert parser.finish() == [MessageDone(index=1, message=say("So"), end=None)]
    assert parser.messages == (think("ab"), say("So"))


@settings(deadline=None)
@given(text=st.text(min_size=1), cuts=st.lists(st.integers(0, 60)))
@example(text="\U0001f468\u200d\U0001f469\u200d\U0001f467 \u4f60", cuts=list(range(60)))
def test_characters_are_never_split(small, text, cuts):
    ids = spelled(small, "<|channel|>final<|message|>") + small.encode(text)
    parser = StreamParser(small)
    got = "".join(event.text for token in ids for event in parser.feed([token]))
    assert got == text
    assert parse(small, ids, cuts=cuts) == [say(text)]


def test_partial_characters_wait_and_are_replaced_at_the_end(small):
    smile = small.encode("\U0001f600")
    assert len(smile) == 4
    parser = StreamParser(small)
    parser.feed(spelled(small, "<|channel|>final<|message|>"))
    assert parser.feed(smile[:3]) == []
    assert [event.text for event in parser.feed(smile[3:])] == ["\U0001f600"]
    assert parser.feed(smile[:2]) == []
    assert [event.text for event in parser.feed(small.encode("a"))] == ["\ufffda"]
    parser.feed(smile[:1])
    assert [getattr(event, "text", None) for event in parser.finish()] == ["\ufffd", None]
    assert parser.messages == (say("\U0001f600\ufffda\ufffd"),)


WORDS = [
    "assistant",
    "user",
    "tool",
    "final",
    "analysis",
    "commentary",
    " to=functions.f",
    " to=",
    " json",
    "code",
    " ",
]
CHARACTERS = [" ", "\n", "\U0001f600", "\u4f60", "<|end|>", "a:b", "\u00a0", "<"]
PIECES = st.one_of(
    st.sampled_from([*CONTROL_TOKENS, *CONTROL_TOKENS, "<|endoftext|>"]),
    st.sampled_from(WORDS),
    st.sampled_from(CHARACTERS).map(lambda text: ("text", text)),
    st.integers(0, 99).map(lambda n: ("marker", n)),
    st.integers(0, 255).map(lambda byte: ("byte", byte)),
)
SKELETONS = [
    "<|channel|> analysis <|message|> M <|end|> <|start|> assistant <|channel|> final <|message|> M <|return|>",
    "<|channel|> commentary W <|constrain|> json <|message|> M <|call|>",
    "W <|channel|> commentary <|message|> M <|end|> <|start|> assistant <|channel|> final <|message|> M M <|return|>",
    "<|message|> M <|end|> <|start|> M W <|channel|> commentary <|message|> M <|end|> <|start|> assistant",
]


@st.composite
def mutated_output(draw):
    """A well-formed output with pieces deleted, doubled, swapped and put in; marker words are unique."""
    pieces = [
        ("marker", 100 + i) if word == "M" else " to=functions.f" if word == "W" else word
        for i, word in enumerate(draw(st.sampled_from(SKELETONS)).split())
    ]
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(pieces)))
        kind = draw(st.sampled_from(["delete", "insert", "insert", "swap", "cut"]))
        if kind == "insert":
            pieces.insert(at, draw(PIECES))
        elif kind == "delete":
            del pieces[at : at + 1]
        elif kind == "swap":
            pieces[at : at + 2] = pieces[at : at + 2][::-1]
        elif draw(st.booleans()):
            del pieces[at:]
    return pieces


def piece_ids(codec, piece) -> list[int]:
    match piece:
        case ("marker", n):
            return codec.encode(f" q{n}q")
        case ("text", text):
            return codec.encode(text)
        case ("byte", byte):
            return [next(t for t in range(600) if codec.token_bytes(t) == bytes([byte]))]
        case _:
            return [codec.special[piece]] if piece in codec.special else codec.encode(piece)


def output_ids(codec, pieces, role) -> list[int]:
    start = [] if role else ["<|start|>", "assistant"]
    return [token for piece in [*start, *pieces] for token in piece_ids(codec, piece)]


def said(messages: list[Message]) -> str:
    fields = ((m.role, m.name, m.channel, m.recipient, m.content_type, m.content) for m in messages)
    return "\n".join(field for message in fields for field in message if field is not None)


def check_markers(codec, ids: list[int], role) -> None:
    """No marker is lost, but where authors, channels and content types stand: of several one counts.

    The output gets an end: a header that the end cuts is no text.
    """
    written, text = codec.decode(ids), said(parse(codec, [*ids, codec.special["<|return|>"]], role=role))
    for marker in set(re.findall(r"q\d+q", written)):
        most = written.count(marker)
        least = most - len(re.findall(rf"<\|(?:start|channel|constrain)\|>\s*[^\s<]*?{marker}", written))
        assert least <= text.count(marker) <= most


OUTPUTS = {"pieces": mutated_output(), "role": st.sampled_from(["assistant", None])}


@settings(deadline=None, max_examples=60)
@example(
    pieces=["commentary", "<|message|>", ("marker", 104), "<|end|>", "<|start|>", ("marker", 0), "<|channel|>"],
    role="assistant",
    cuts=[],
)
@given(**OUTPUTS, cuts=st.lists(st.integers(0, 60), max_size=20))
def test_mutated_output_loses_no_text_in_any_chunking(small, pieces, role, cuts):
    ids = output_ids(small, pieces, role)
    messages = parse(small, ids, role=role)
    assert parse(small, ids, role=role, cuts=cuts) == messages
    assert parse(small, ids, role=role, cuts=range(len(ids))) == messages
    check_markers(small, ids, role)


@settings(deadline=None, max_examples=60)
@given(**OUTPUTS)
def test_mutated_output_is_read_as_openai_harmony_does(harmony, o200k, pieces, role):
    ids = output_ids(o200k, pieces, role)
    assert strict(harmony, ids, role) in (None, parse(o200k, ids, role=role))


@settings(deadline=None, max_examples=60)
@given(ids=st.lists(st.integers(-1, 620), max_size=60), cuts=st.lists(st.integers(0, 60), max_size=20))
def test_any_ids_of_a_vocabulary(small, ids, cuts):
    assert parse(small, ids) == parse(small, ids, cuts=cuts) == parse(small, ids, cuts=range(len(ids)))


@settings(deadline=None, max_examples=60)
@given(data=st.binary(max_size=30))
def test_content_that_is_not_utf8_is_read_as_openai_harmony_does(harmony, o200k, data):
    head = spelled(o200k, "<|channel|>final<|message|>")
    ids = [*head, *(o200k.encoding._encode_single_piece(bytes([byte]))[0] for byte in data)]
    assert parse(o200k, ids) == strict(harmony, ids, "assistant") == [say(data.decode(errors="replace"))]


def test_a_lone_content_type_is_addressed_to_nobody(small):
    """The strict parser's reading is kept; who shows the message must not take it for a tool call."""
    parser = StreamParser(small)
    parser.feed(spelled(small, "<|channel|>final <|constrain|>json<|message|>{}<|return|>"))
    parser.finish()
    (message,) = parser.messages
    assert message.recipient == "<|constrain|>json" and not is_addressed(message.recipient)
    assert is_addressed("functions.f") and not is_addressed(None)
