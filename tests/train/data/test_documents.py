"""Documents against openai-harmony's parse of their ids, our renderer's prompts, and rules of their own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.train.data.support.chats import NUM_CHATS, TEXTS, chat, chat_json
from tests.train.data.support.parsed import expected_masks

from eyas.base.errors import UserError
from eyas.base.harmony.conversation import Conversation, to_harmony
from eyas.base.harmony.rendering import is_final, render_conversation, render_message
from eyas.base.tokens.tokenizer import CONTROL_TOKENS
from eyas.train.data.documents import DocumentOptions, Tally, documents_of
from eyas.train.types import Segment


def documents(codec, value, **options):
    return list(documents_of(codec, chat(value), DocumentOptions(**options), Tally()))


def harmony_messages(value):
    """Head and rest of a chat, by the one function that servers use."""
    one = chat(value)
    return to_harmony(Conversation(entries=one.entries, tools=one.tools, effort=one.effort or "medium", date=one.date))


def differences(harmony, document):
    """The tokens whose run or segment is not what openai-harmony's parse says."""
    runs, segments = expected_masks(harmony, document.ids_T.tolist())
    is_code = document.segments_T == Segment.CODE
    same = np.where(is_code, np.isin(segments, (Segment.REASONING, Segment.FINAL)), document.segments_T == segments)
    return np.flatnonzero((document.runs_T != runs) | ~same)


@pytest.mark.parametrize(
    ("seed", "call_headers"),
    [
        pytest.param(seed, call_headers, marks=[pytest.mark.slow] * (seed % 4 != remainder))
        for remainder, call_headers in enumerate(("rendered", "written"))
        for seed in range(NUM_CHATS)
    ],
)
def test_masks_are_those_of_openai_harmonys_parse(harmony, o200k, seed, call_headers):
    found = documents(o200k, chat_json(seed, names=False), call_headers=call_headers)
    assert found and all(not len(differences(harmony, document)) for document in found)


def test_the_chats_have_what_they_promise():
    values = [chat_json(seed) for seed in range(NUM_CHATS)]
    answers = [[m for m in v["messages"] if m["role"] == "assistant"] for v in values]
    assert len(values) >= 40
    assert sum(any(len(m.get("tool_calls", ())) > 1 for m in ms) for ms in answers) >= 10
    assert sum(sum("reasoning" in m or "reasoning_content" in m for m in ms) > 1 for ms in answers) >= 20
    assert sum("<|call|>" in str(v) for v in values) >= 20
    assert sum(v["messages"][-1]["role"] != "assistant" for v in values) >= 3
    assert sum("tool_calls" in v["messages"][-1] for v in values) >= 1


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_a_mask_that_is_off_by_one_is_seen(harmony, o200k, shift):
    for seed in range(5):
        for document in documents(o200k, chat_json(seed, names=False)):
            moved = dataclasses.replace(document, runs_T=np.roll(document.runs_T, shift))
            assert len(differences(harmony, moved))


@pytest.mark.parametrize("seed", range(NUM_CHATS))
def test_a_document_has_the_ids_of_a_servers_prompts(demo, seed):
    """Up to the beginning of each generation the ids are those of the prompt that asks for it."""
    value = chat_json(seed)
    head, rest = harmony_messages(value)
    prompts = {
        tuple(render_conversation(demo, [*head, *rest[:at]]))
        for at, message in enumerate(rest)
        if message.role == "assistant"
    }
    whole = {tuple(render_conversation(demo, [*head, *rest[: at + 1]], purpose="training")) for at in range(len(rest))}
    begun = set()
    for document in documents(demo, value):
        ids = document.ids_T.tolist()
        assert tuple(ids) in whole
        for run in range(document.runs_T.max() + 1):
            start = int(np.flatnonzero(document.runs_T == run)[0])
            begun.add(tuple(ids[:start]))
    assert begun <= prompts
    assert len(begun) == len(generations(demo, rest))


def generations(codec, messages):
    """What a server samples for a chat, generation by generation: all of the assistant's ids but the openers."""
    opener = len(render_conversation(codec, []))
    found, goes_on = [], False
    for message in messages:
        if message.role == "assistant":
            ids = render_message(codec, message)
            if is_final(message):
                ids[-1] = codec.special["<|return|>"]
            found = [*found[:-1], found[-1] + ids] if goes_on else [*found, ids[opener:]]
        goes_on = message.role == "assistant" and message.recipient is None and not is_final(message)
    return found


@pytest.mark.parametrize("seed", range(NUM_CHATS))
def test_each_generated_token_is_supervised_exactly_once(demo, seed):
    value = chat_json(seed)
    supervised = [
        document.ids_T[document.runs_T == run].tolist()
        for document in documents(demo, value)
        for run in range(document.runs_T.max() + 1)
    ]
    assert supervised == generations(demo, harmony_messages(value)[1])


@pytest.mark.parametrize("seed", range(NUM_CHATS))
def test_runs_are_contiguous_and_segments_agree(demo, seed):
    for document in documents(demo, chat_json(seed)):
        assert document.ids_T.dtype == document.runs_T.dtype == np.int32 and document.segments_T.dtype == np.uint8
        assert len(document.ids_T) == len(document.runs_T) == len(document.segments_T)
        assert ((document.runs_T < 0) == (document.segments_T == Segment.GIVEN)).all()
        assert document.runs_T[0] == -1 and document.runs_T[-1] == document.runs_T.max() >= 0
        for run in range(document.runs_T.max() + 1):
            at = np.flatnonzero(document.runs_T == run)
            assert (np.diff(at) == 1).all()


SPELLED = st.lists(st.sampled_from([*CONTROL_TOKENS, "<|start|>assistant", " to=functions.f", "x", "\n", " "]))
CALL = {"id": "1", "type": "function", "function": {"name": "f"}}


def with_texts(texts):
    system, user, reasoning, preamble, arguments, result, answer = texts
    return {
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": user},
            {
                "role": "assistant",
                "reasoning": reasoning,
                "content": preamble,
                "tool_calls": [CALL | {"function": {"name": "f", "arguments": arguments}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": result},
            {"role": "assistant", "content": answer},
        ]
    }


@given(texts=st.lists(SPELLED.map("".join).map("x".__add__), min_size=7, max_size=7))
def test_text_is_text(demo, texts):
    """The spellings of control tokens change neither the control tokens of a document nor what is generated of it."""
    control = list(demo.special.values())
    (document,), (plain,) = (documents(demo, with_texts(some)) for some in (texts, ["x"] * 7))
    assert shape(document, control) == shape(plain, control)
    said = {s: demo.decode(document.ids_T[document.segments_T == s].tolist()) for s in Segment}
    assert (said[Segment.REASONING], said[Segment.CALL], said[Segment.FINAL]) == (
        texts[2],
        texts[4],
        texts[3] + texts[6],
    )


def shape(document, control):
    is_control = np.isin(document.ids_T, control)
    return [x[is_control].tolist() for x in (document.ids_T, document.runs_T, document.segments_T)]


def test_code_is_what_stands_between_fences(demo):
    value = {"messages": [{"role": "user", "content": TEXTS[4]}, {"role": "assistant", "content": TEXTS[5]}]}
    (document,) = documents(demo, value)
    code = demo.decode(document.ids_T[document.segments_T == Segment.CODE].tolist())
    assert code == "ls -l\n```\nnested\n```\n"


ANSWERED = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "reasoning": "Hm.", "content": "Hello."},
]
ASKED = {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{}"}}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "9"}


def test_a_turn_that_ends_in_a_call_ends_with_its_call(demo):
    for rest in ([ASKED], [ASKED, RESULT], [ASKED, RESULT, {"role": "user", "content": "Wait."}]):
        *_, document = documents(demo, {"messages": [*ANSWERED, ANSWERED[0], *rest]})
        assert document.ids_T[-1] == demo.special["<|call|>"]
        assert document.source == "chats.jsonl:1, turn 2"


def test_calls_are_written_as_the_model_does_and_rendered_once_they_are_history(harmony, o200k):
    value = {"messages": [ANSWERED[0], ASKED, RESULT, ANSWERED[1], *ANSWERED]}
    rendered = "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"
    written = "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    before, after = documents(o200k, value, call_headers="written")
    call = [*render_conversation(o200k, []), *before.ids_T[before.runs_T == 0].tolist()]
    assert call == harmony.encode(written, allowed_special="all")
    assert written in harmony.decode(before.ids_T.tolist()) and rendered not in harmony.decode(before.ids_T.tolist())
    assert rendered in harmony.decode(after.ids_T.tolist()) and written not in harmony.decode(after.ids_T.tolist())
    plain, same = documents(o200k, value)
    assert rendered in harmony.decode(plain.ids_T.tolist()) and (same.ids_T == after.ids_T).all()


def test_a_chat_without_answers_has_no_documents(demo):
    tally = Tally()
    question = chat({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}]})
    assert not list(documents_of(demo, question, DocumentOptions(), tally))
    assert tally == Tally(num_chats=1, num_without_turns=1)


def test_effort_and_date_are_the_chats_or_the_defaults(demo):
    options = {"effort": "low", "date": "2025-01-31"}
    (plain,) = documents(demo, {"messages": ANSWERED}, **options)
    (own,) = documents(demo, {"messages": ANSWERED, "reasoning_effort": "high", "date": "2026-11-24"}, **options)
    assert "Reasoning: low" in demo.decode(plain.ids_T.tolist()) and "2025-01-31" in demo.decode(plain.ids_T.tolist())
    assert "Reasoning: high" in demo.decode(own.ids_T.tolist()) and "2026-11-24" in demo.decode(own.ids_T.tolist())


LONG = {"messages": [*ANSWERED, {"role": "user", "content": "Count!"}, {"role": "assistant", "content": "1, 2, " * 40}]}


def test_a_turn_longer_than_the_context_is_an_error_with_its_place(demo):
    _, second = documents(demo, LONG)
    assert documents(demo, LONG, context=len(second))
    with pytest.raises(UserError, match=rf"^chats.jsonl:1, turn 2 has {len(second)} tokens .* set a longer context"):
        documents(demo, LONG, context=len(second) - 1)


def test_a_turn_longer_than_the_context_is_skipped_or_cut_and_counted(demo):
    first, second = documents(demo, LONG)
    for too_long, lengths, counts in (
        ("skip", [len(first)], {"num_skipped": 1}),
        ("truncate", [len(first), len(second) - 20], {"num_truncated": 1}),
    ):
        tally = Tally()
        options = DocumentOptions(context=len(second) - 20, too_long=too_long)
        found = list(documents_of(demo, chat(LONG), options, tally))
        assert [len(document) for document in found] == lengths
        assert tally == Tally(num_chats=1, **counts)
        assert (found[-1].ids_T == (first, second)[len(found) - 1].ids_T[: lengths[-1]]).all()
    start = int((second.runs_T >= 0).argmax())
    for context in (start, start - 2, 5):  # nothing generated is left
        tally = Tally()
        options = DocumentOptions(context=context, too_long="truncate")
        assert not list(documents_of(demo, chat({"messages": LONG["messages"][2:]}), options, tally))[1:]
        list(documents_of(demo, chat(LONG), options, tally))
        assert tally.num_skipped >= 1


class Counting:
    """A codec that counts the characters that it is given."""

    def __init__(self, codec):
        self.codec = codec
        self.special, self.longest, self.token_bytes = codec.special, codec.longest, codec.token_bytes
        self.num_chars = 0

    def encode(self, text):
        self.num_chars += len(text)
        return self.codec.encode(text)


def test_work_grows_with_the_text_and_not_with_its_square(demo):
    """Each message is tokenized once, however many documents it is part of; a skipped document costs nothing."""

    def chars(num_turns):
        codec = Counting(demo)
        turns = [dict(m, content=m["content"] * 10) for m in ANSWERED]
        value = chat({"messages": turns * num_turns})
        found = list(documents_of(codec, value, DocumentOptions(context=2000, too_long="skip"), Tally()))
        return codec.num_chars, len(found)

    one, two, three = (chars(num) for num in (50, 100, 150))
    assert two[0] - one[0] == three[0] - two[0] > 0
    assert one[1] == two[1] == three[1]


@pytest.mark.slow
def test_masks_of_131072_tokens(o200k, capsys):
    """Prints what masks take beside tokenizing, which is measured on its own: the bar is 0.2 s."""
    import time

    from eyas.base.tokens.remembering import RememberingCodec

    text = "The quick brown fox jumps over the lazy dog, and then:\n```python\nx = [1, 2, 3]\n```\n" * 12
    call = ASKED | {"reasoning": text}
    turn = [{"role": "user", "content": text}, call, RESULT | {"content": text}, {"role": "assistant", "content": text}]
    lengths = {}
    for num_rounds in (10, 40, 117):
        value = {"messages": [turn[0], *turn[1:3] * (2 * num_rounds), turn[3]]}
        codec = RememberingCodec(o200k)
        one = chat(value)
        list(documents_of(codec, one, DocumentOptions(), Tally()))  # texts are tokenized
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            (document,) = documents_of(codec, one, DocumentOptions(), Tally())
            seconds.append(time.perf_counter() - start)
        lengths[len(document)] = min(seconds)
    with capsys.disabled():
        print("\n" + ", ".join(f"{n:,} tokens: {1000 * s:.1f} ms" for n, s in lengths.items()))
    assert max(lengths) > 131_072
