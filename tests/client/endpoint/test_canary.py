"""The canary: what counts as garbage, and what it says of every kind of answer a server can give."""

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.client.endpoint.canary import BUDGETS, PATH, ask, conversation, garbage

GOOD = "The four seasons are spring, summer, autumn (or fall) and winter."
SENTENCE = "The first of the four seasons is the spring, in which the days grow longer and the trees get leaves. "
PARAGRAPH = "".join(f"{n}. Season {n} comes after season {n - 1} and lasts for {90 + n} days.\n" for n in range(1, 9))


@pytest.mark.parametrize(
    "text",
    [
        "!" * 160,
        "!!!! " * 40,
        "the" * 60,
        "\u0412\u043e" * 50,
        "<|endoftext|>" * 0 + "0" * 24,
        "ok " + "?" * 90,
        "\n\n!" * 40,
    ],
)
def test_garbage(text):
    assert "over and over" in garbage(text)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "!!!!",  # too short to say
        "Spring!!!!!!!! Summer!!!!!!!! Autumn!!!!!!!! And, last of all, comes the winter, as you know.",
        f"| season |\n{'-' * 40}\n| spring |\n| summer |\n| autumn |\n| winter |\n and that is all there is to say",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
        PARAGRAPH,
        "**Spring**, **summer**, **autumn**, **winter**. " * 2,
        "| spring | 90 days |\n| summer | 92 days |\n| autumn | 91 days |\n| winter | 89 days |\n",
        "The user asks for the four seasons. We should answer: spring, summer, autumn, winter.",
        "",
    ],
)
def test_no_garbage(text):
    assert garbage(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Well, " + SENTENCE * 5,
        GOOD + SENTENCE * 14,
        "I think" + " and that is because the user" * 6,
        PARAGRAPH * 4,
        ("".join(chr(0x4E00 + n) for n in range(700))) * 8,
        "Once more: " + SENTENCE * 40 + "The end.",
    ],
)
def test_longer_things_over_and_over_are_garbage(text):
    verdict = garbage(text)
    assert "over and over" in verdict and len(verdict) < 120


@given(unit=st.text(st.characters(codec="utf-8", exclude_categories=["Z", "Cc", "Cs"]), min_size=1, max_size=12))
def test_anything_short_over_and_over_is_garbage(unit):
    assert garbage(unit * 64) is not None


def asked(*answers, role="text"):
    """What the canary says, and the requests, of a server that gives `answers` one after another."""
    requests = []

    def handle(request):
        requests.append(request)
        answer = answers[len(requests) - 1]
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        return httpx.Response(status, text=body if isinstance(body, str) else json.dumps(body))

    with httpx.Client(base_url="http://x", transport=httpx.MockTransport(handle)) as client:
        return ask(client, "demo", 5.0, role), requests


def chat(finish="stop", **message):
    return 200, {"choices": [{"message": message, "finish_reason": finish}]}


def test_a_good_answer():
    verdict, (request,) = asked(chat(content=GOOD))
    assert verdict is None
    assert request.url.path == "/v1/chat/completions"
    body = json.loads(request.content)
    assert body["model"] == "demo" and body["max_tokens"] == BUDGETS[0]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_alone_is_an_answer_and_can_be_garbage(name):
    assert asked(chat("length", content=None, **{name: GOOD}))[0] is None
    assert "garbage" in asked(chat("length", content="", **{name: "!" * 99}))[0]


def test_hidden_reasoning_gets_larger_budgets():
    hidden = chat("length", content="")
    verdict, requests = asked(hidden, hidden, chat(content=GOOD))
    assert verdict is None and [json.loads(one.content)["max_tokens"] for one in requests] == list(BUDGETS)
    assert asked(hidden, hidden, hidden)[0] == "an empty answer came back"


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (chat(content=""), "an empty answer"),
        ((500, "CUDA error"), "HTTP status 500: CUDA error"),
        ((401, {"error": "no"}), "HTTP status 401"),
        ((200, "<html>"), "no chat completion"),
        ((200, {"choices": []}), "no chat completion"),
        ((200, []), "no chat completion"),
        (httpx.ReadTimeout("late"), "no answer within 5 s"),
        (httpx.ConnectError("refused"), "no answer (refused)"),
    ],
)
def test_what_is_wrong_is_said(answer, verdict):
    assert verdict in asked(answer)[0]


def test_a_model_with_eyes_is_shown_a_picture():
    verdict, (request,) = asked(chat(content="A red square, and nothing else."), role="vision")
    assert verdict is None and request.url.path == PATH
    text, image = json.loads(request.content)["messages"][0]["content"]
    assert text["type"] == "text" and image["image_url"]["url"].startswith("data:image/png;base64,")
    assert "garbage" in asked(chat(content="!" * 99), role="vision")[0]
    assert asked(chat("length", content=""), chat(content="Red."), role="vision")[0] is None


@pytest.mark.parametrize(
    "answer",
    [
        (500, {"error": {"message": "image input is not supported - you may need to provide the mmproj"}}),
        (400, {"error": {"message": "image input is not supported: m is not a multimodal model"}}),
    ],
)
def test_a_server_without_eyes_says_so(answer):
    assert f"HTTP status {answer[0]}" in asked(answer, role="vision")[0]
    assert "image input is not supported" in asked(answer, role="vision")[0]


def test_a_model_of_embeddings_is_asked_for_vectors():
    vectors = ([1.0, 0.2], [1.0, 0.3], [-0.5, 1.0])
    body = {"data": [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]}
    verdict, (request,) = asked((200, body), role="embeddings")
    assert verdict is None and request.url.path == "/v1/embeddings"
    assert len(json.loads(request.content)["input"]) == 3
    assert "HTTP status 501" in asked((501, {"error": "does not support embeddings"}), role="embeddings")[0]
    assert "no list of embeddings" in asked(chat(content=GOOD), role="embeddings")[0]


def test_a_chat_is_the_conversation_where_no_role_is_given():
    """The router calls it so, and sends its bodies to PATH."""
    assert next(conversation("m")) == next(conversation("m", "text"))
    assert PATH == "/v1/chat/completions"
