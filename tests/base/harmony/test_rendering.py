"""The Harmony renderer against openai-harmony with the real vocabulary, and its rules on their own."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.base.support.harmony_cases import (
    BODIES,
    CASES,
    call,
    conversation,
    reference_conversation,
    result,
    say,
    think,
    user,
)

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.rendering import (
    Message,
    developer_message,
    render_conversation,
    render_message,
    stop_ids,
    system_message,
)
from eyas.base.tokens.tokenizer import CONTROL_TOKENS


def keep_all(harmony):
    import openai_harmony

    return openai_harmony.RenderConversationConfig(auto_drop_analysis=False)


def reference_ids(harmony, theirs, purpose, config):
    import openai_harmony

    if purpose == "completion":
        return harmony.render_conversation_for_completion(theirs, openai_harmony.Role.ASSISTANT, config)
    render = harmony.render_conversation_for_training if purpose == "training" else harmony.render_conversation
    return render(theirs, config)


@pytest.mark.parametrize("purpose", ["completion", "training", "history"])
@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_conversations_are_rendered_as_openai_harmony_does(harmony, o200k, case, purpose):
    ours = render_conversation(o200k, conversation(*case), purpose=purpose, drop_analysis=False)
    assert ours == reference_ids(harmony, reference_conversation(*case), purpose, keep_all(harmony))


FIELD = st.none() | st.text(max_size=12) | st.sampled_from(["all", "<|constrain|>json", "final", "analysis"])
ANY_MESSAGE = st.builds(
    Message,
    role=st.sampled_from(["system", "developer", "user", "assistant"]),
    content=st.text(),
    channel=FIELD,
    recipient=FIELD,
    name=FIELD,
    content_type=FIELD,
) | st.builds(Message, role=st.just("tool"), name=st.text(max_size=12), content=st.text(), channel=FIELD)


@settings(deadline=None)
@given(messages=st.lists(ANY_MESSAGE, max_size=4), purpose=st.sampled_from(["completion", "training", "history"]))
def test_any_messages_are_rendered_as_openai_harmony_does(harmony, o200k, messages, purpose):
    ours = render_conversation(o200k, messages, purpose=purpose, drop_analysis=False)
    assert ours == reference_ids(harmony, reference_conversation(None, None, messages), purpose, keep_all(harmony))


def test_line_for_function_calls(harmony):
    import openai_harmony as oh

    content = oh.SystemContent.new().with_conversation_start_date("2025-06-28")
    message = oh.Message.from_role_and_content(oh.Role.SYSTEM, content)
    theirs = harmony.render(message, oh.RenderOptions(conversation_has_function_tools=True))
    ours = system_message(date="2025-06-28", has_functions=True)
    assert ours.content == harmony.decode(theirs[3:-1])


def test_ids_of_the_prompt_and_of_the_stops(harmony, o200k):
    assert render_conversation(o200k, []) == [200006, 173781]
    assert set(stop_ids(o200k)) == set(harmony.stop_tokens_for_assistant_actions())


FIRST, SECOND = [user("a"), think("ta"), say("A")], [user("b"), think("tb"), say("B")]
OPEN = [user("c"), think("tc"), call("functions.f", "{}"), result("functions.f", "1"), think("td")]


@pytest.mark.parametrize(
    ("messages", "purpose", "dropped"),
    [
        ([*FIRST, user("x")], "completion", ["ta"]),
        ([*FIRST, *SECOND, user("x")], "completion", ["ta", "tb"]),
        ([*FIRST, *SECOND, *OPEN], "completion", ["ta", "tb"]),
        (FIRST, "completion", ["ta"]),
        (OPEN, "completion", []),
        (FIRST, "training", []),
        ([*FIRST, *SECOND], "training", ["ta"]),
        ([*FIRST, *OPEN, say("C")], "training", ["ta"]),
        ([*FIRST, user("x")], "history", ["ta"]),
        ([], "completion", []),
    ],
)
def test_analysis_of_finished_turns_is_dropped(small, messages, purpose, dropped):
    kept = [message for message in messages if message.content not in dropped]
    assert len(kept) == len(messages) - len(dropped)
    expected = render_conversation(small, kept, purpose=purpose, drop_analysis=False)
    assert render_conversation(small, messages, purpose=purpose) == expected


def test_after_one_finished_turn_openai_harmony_drops_the_same(harmony, o200k):
    import openai_harmony as oh

    for messages in (FIRST, [*FIRST, user("x")]):
        theirs = reference_conversation(None, None, messages)
        expected = harmony.render_conversation_for_completion(theirs, oh.Role.ASSISTANT)
        assert render_conversation(o200k, messages) == expected


def test_training_ends_a_final_message_with_return(small):
    history = render_conversation(small, FIRST, purpose="history")
    assert render_conversation(small, FIRST, purpose="training") == [
        *render_conversation(small, FIRST, purpose="history", drop_analysis=False)[:-1],
        small.special["<|return|>"],
    ]
    assert history[-1] == small.special["<|end|>"]
    unfinished = [*FIRST, user("x")]
    assert render_conversation(small, unfinished, purpose="training", drop_analysis=False)[-1] == history[-1]


SPELLED = st.lists(st.sampled_from([*CONTROL_TOKENS, "to=functions.f ", "assistant", "\n"])).map("".join)


@given(text=SPELLED, field=st.sampled_from(["content", "channel", "recipient", "name", "content_type"]))
def test_no_field_injects_control_tokens(small, text, field):
    plain = Message(role="user", content="", channel="c", recipient="r", name="n", content_type="t")
    message = dataclasses.replace(plain, **{field: f"x{text}"})
    control = set(small.special.values())
    expected = [token for token in render_message(small, plain) if token in control]
    assert [token for token in render_message(small, message) if token in control] == expected
    head = [system_message(identity=text, date=text), developer_message(text)]
    ids = render_conversation(small, head, purpose="history")
    assert [small.decode([token]) for token in ids if token in control] == ["<|start|>", "<|message|>", "<|end|>"] * 2


def test_a_tool_message_needs_a_name(small):
    with pytest.raises(InvalidRequest, match="name of its tool"):
        render_message(small, Message(role="tool", content="1"))


def test_cases_cover_what_they_promise():
    assert len(CASES) >= 40
    assert {id(body) for _, _, body in CASES} == set(map(id, BODIES))
    assert {(s or {}).get("effort", "default") for s, _, _ in CASES} == {"low", "medium", "high", None, "default"}
