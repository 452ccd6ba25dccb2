"""What the vision model is asked, and answers that are none."""

import json

import pytest

from eyas.router.sidecars.question import MAX_CHARS, MAX_TOKENS, description_of, question


def answer(content: object) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()


def test_the_question() -> None:
    body = json.loads(question("data:image/png;base64,AA=="))
    assert (body["max_tokens"], body["temperature"], body["stream"]) == (MAX_TOKENS, 0, False) == (200, 0, False)
    (message,) = body["messages"]
    assert [one["type"] for one in message["content"]] == ["text", "image_url"]


def test_the_answer() -> None:
    assert description_of(answer(" A cat.\nIt sleeps. ")) == "A cat.\nIt sleeps."
    assert len(description_of(answer("x" * 10_000))) == MAX_CHARS


@pytest.mark.parametrize(
    "body",
    [
        answer(None),
        answer(" \n"),
        answer([]),
        b"{}",
        b'{"choices": []}',
        b"\xff",
        b"<html>",
        b'{"id": ' + b"[" * 100_000,
    ],
)
def test_no_answer(body: bytes) -> None:
    with pytest.raises(ValueError):
        description_of(body)
