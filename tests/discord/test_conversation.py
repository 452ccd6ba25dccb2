"""The life of an answer, whatever pieces come in whatever order."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.serving.waiting import Waiting
from eyas.client.errors import Broken, CircuitOpen, ClientError, Refused, ServerBusy, Stalled, TimedOut
from eyas.client.pieces import Asked, Call, Content, End, Reasoning, Timings, Usage
from eyas.discord.conversation import Conversation
from eyas.discord.settings.schema import Display
from eyas.discord.words import note, said_by_model

DISPLAY = Display()
UNAVAILABLE = DISPLAY.fallback
ERRORS: list[ClientError] = [
    CircuitOpen(42.4, failures=5, endpoint="http://secret:30000"),
    TimedOut("prefill", 120.0, endpoint="http://secret:30000"),
    TimedOut("queue", 120.0),
    Stalled(120.0),
    ServerBusy("too many requests", 7.2),
    ServerBusy("too many requests", None),
    Refused(400, "no such parameter"),
    Refused(500, "CUDA error"),
    Broken("the connection ended", kind="broken", endpoint="http://secret:30000"),
]


def end(finish_reason: str = "stop") -> End:
    usage = Usage(prompt_tokens=5, completion_tokens=2048, total_tokens=2053)
    timings = Timings(first_token_s=0.1, total_s=1.0)
    return End(finish_reason=finish_reason, usage=usage, timings=timings, model="m", backend=None, endpoint="e")


def conversation(**more: object) -> Conversation:
    return Conversation("large", display=DISPLAY, **more)


def shown(one: Conversation) -> str:
    return "\n".join(message.text for message in one.wanted().messages)


texts = st.text(st.sampled_from(string.ascii_letters + " \n`*_\N{THINKING FACE}"), max_size=400)
pieces = st.one_of(
    st.builds(Content, texts),
    st.builds(Reasoning, texts),
    st.builds(Waiting, state=st.sampled_from(["queued", "loading", "reading"]), position=st.none() | st.integers(1, 9)),
    st.builds(
        Asked,
        endpoint=st.just("second"),
        model=st.just("small"),
        is_fallback=st.just(True),
        reason=st.sampled_from(ERRORS),
    ),
    st.builds(Call, st.just("id"), st.just("search"), st.just("{}")),
)
ends = st.one_of(
    st.sampled_from(["stop", "length", "content_filter"]).map(end),
    st.sampled_from(ERRORS),
    st.sampled_from(["ann", "line"]),
)


@given(st.lists(pieces, max_size=30), ends, st.booleans())
def test_every_state_can_be_shown(steps, last, has_fallback):
    """No message is blank or too long at any time, one button stops it, and the end says something."""
    one = conversation(has_fallback=has_fallback)

    def check() -> None:
        wanted = one.wanted()
        for message in wanted.messages:
            assert message.text.strip() and len(message.text.encode("utf-16-le")) // 2 <= 2000
        assert [message.buttons for message in wanted.messages[:-1]] == [()] * (len(wanted.messages) - 1)
        assert wanted.messages[-1].buttons[0] == ("again" if wanted.is_final else "stop")

    check()
    for piece in steps:
        one.take(piece)
        check()
        assert not one.wanted().is_final
    if isinstance(last, End):
        one.take(last)
    elif isinstance(last, ClientError):
        one.fail(last)
    elif last == "line":
        one.end_unfinished("The bot was stopped here.")
    else:
        one.stop(last)
    check()
    assert one.is_over and one.wanted().is_final and "secret" not in shown(one)
    before = one.wanted()
    one.take(Content("late"))
    one.fail(ERRORS[0])
    one.stop("ben")
    assert one.wanted() == before


@given(st.lists(texts, max_size=12))
def test_what_the_bot_says_is_no_part_of_what_the_model_said(parts):
    one = conversation()
    for text in parts:
        one.take(Content(text))
    one.take(end("length"))
    said = "".join(said_by_model(message.text, DISPLAY) for message in one.wanted().messages)
    fences = "`\n"  # those that are cut are closed and opened again
    if one.wanted().messages[-1].file is None and "```" not in "".join(parts):
        assert "".join(said.split()) == "".join("".join(parts).split())
    assert (not said.startswith("*Thinking") and "-# ·" not in said) or fences in said


def test_the_states_of_waiting():
    one = conversation()
    assert shown(one) == "*Thinking with large...*"
    one.take(Waiting(state="queued", position=3, eta_s=40.0))
    assert shown(one) == "*Thinking with large...*\n-# · Waiting in the queue, place 3, about 40 s"
    one.take(Waiting(state="loading", eta_s=150.0))
    assert shown(one) == "*Thinking with large...*\n-# · The model is being loaded, about 2 min"
    one.take(Content(" "))
    assert shown(one) == "*Thinking with large...*"
    one.take(Content("Yes."))
    assert shown(one).strip() == "Yes." and one.wanted().reaction == DISPLAY.writing_reaction
    one.take(end())
    assert shown(one).strip() == "Yes." and one.wanted().reaction == DISPLAY.done_reaction


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_said_for_people(error):
    one = conversation()
    one.fail(error)
    said = shown(one)
    assert one.wanted().reaction is None
    if isinstance(error, TimedOut):
        assert said.startswith("\N{STOPWATCH}\N{VARIATION SELECTOR-16} Response timed out (120s limit).")
    elif isinstance(error, Refused):
        assert said == note(f"The server refused it: {error.message}.")
    else:
        assert said.startswith(f"{UNAVAILABLE}\n-# · ")
        assert said.endswith(" No fallback is set up.")
    begun = conversation()
    begun.take(Content("Half"))
    begun.fail(error)
    assert shown(begun).startswith("Half\n-# · The answer was cut off here: ")


def test_a_fallback_is_named():
    one = conversation(has_fallback=True)
    one.take(Asked(endpoint="first", model="large"))
    one.take(Asked(endpoint="second", model="small", is_fallback=True, reason=ERRORS[0]))
    assert shown(one) == f"{UNAVAILABLE}\n*Thinking with small...*"
    one.take(Content("Yes."))
    one.take(end())
    assert shown(one) == f"{UNAVAILABLE}\n-# · Answer of small\nYes."
    assert said_by_model(shown(one), DISPLAY) == "Yes."


def test_a_fallback_that_fails_is_said():
    one = conversation(has_fallback=True)
    one.take(Asked(endpoint="second", model=None, is_fallback=True, reason=ERRORS[1]))
    one.fail(ERRORS[-1])
    lines = shown(one).split("\n")
    assert lines[0].startswith("\N{STOPWATCH}") and lines[1].startswith("-# · The fallback gave no answer either: ")


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "*The model answered nothing.*"),
        ([Content(" \n")], "*The model answered nothing.*"),
        ([Reasoning("Hm.")], "*The model reasoned, and gave no answer.*"),
        (
            [Call("1", "search", "{}")],
            "*The model answered nothing.*\n-# · The model wanted to call search, and has no tools here.",
        ),
    ],
)
def test_no_text_is_said_as_such(steps, said):
    one = conversation()
    for piece in steps:
        one.take(piece)
    one.take(end())
    assert shown(one) == said and one.outcome == "empty"


def test_what_has_no_room_is_a_file():
    one = conversation()
    one.take(Content("`" * 6000))
    assert shown(one) == "-# · The answer comes as a file."
    one.take(end())
    (message,) = one.wanted().messages
    assert (message.text, message.file) == ("-# · The answer is in the file.", "`" * 6000)
