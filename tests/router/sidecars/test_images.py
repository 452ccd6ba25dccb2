"""Images in bodies of each dialect: all are found, nothing else changes, and no text depends on what comes later."""

import base64
import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.router.support.sighted import CHAT, MESSAGES, RESPONSES, data_url, part, png, text

from eyas.base.errors import InvalidRequest
from eyas.gateway.anthropic.body import MessagesBody
from eyas.gateway.anthropic.text import NO_IMAGE, text_of
from eyas.gateway.openai.chat.messages import ChatMessages
from eyas.gateway.openai.responses.items import InputItem
from eyas.router.relay.body import Body
from eyas.router.sidecars.images import MAX_IMAGE, MAX_IMAGES, Images, find_images, may_have_images

PATHS = (CHAT, RESPONSES, MESSAGES)
WORDS = st.text(max_size=20) | st.sampled_from(['"image"', '"image_url"', '{"type": "image_url"}', '\\"input_image\\"'])


def found(path: str, turns: Any, **fields: Any) -> Images | None:
    raw = json.dumps({"input" if path == RESPONSES else "messages": turns, **fields}).encode()
    body = Body.of(raw)
    images = find_images(path, body.fields)
    assert images is None or may_have_images(path, raw)
    return images


def replaced(path: str, turns: Any, descriptions: list[str | None]) -> Any:
    images = found(path, turns)
    assert images is not None
    return json.loads(Body(dict(images.replaced(descriptions))).encoded(None))[
        "input" if path == RESPONSES else "messages"
    ]


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize("path", PATHS)
def test_each_image_is_found_where_it_stands(path: str) -> None:
    turns = [user(part(path, 1), text(path, "what?")), {"role": "assistant", "content": "that"}, user(part(path, 2))]
    images = found(path, turns)
    assert images is not None and images.is_asked_about
    assert [one.digest for one in images.images] == [hashlib.sha256(png(number)).digest() for number in (1, 2)]
    assert [one.url for one in images.images] == [data_url(1), data_url(2)]
    now = replaced(path, turns, ["one", None])
    line = text(path, "[There is an image here. Another model describes it: one]\n")
    assert now == [user(line, text(path, "what?")), turns[1], user(text(path, NO_IMAGE))]


def test_images_in_results_and_documents() -> None:
    inside = {"type": "document", "source": {"type": "content", "content": [part(MESSAGES, 3)]}, "title": "t"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text(MESSAGES, "x"), part(MESSAGES, 2), inside]}
    turns = [user(text(MESSAGES, "go"), result, part(MESSAGES, 1))]
    now = replaced(MESSAGES, turns, ["two", "three", "one"])
    assert now[0]["content"][1]["content"][1]["text"].strip().endswith("it: two]")
    assert now[0]["content"][1]["content"][2]["source"]["content"][0]["text"].endswith("it: three]")
    assert now[0]["content"][2]["text"] == "\n[There is an image here. Another model describes it: one]"
    output = {"type": "function_call_output", "call_id": "c", "output": [part(RESPONSES, 1)]}
    assert replaced(RESPONSES, [output], [None]) == [{**output, "output": [text(RESPONSES, NO_IMAGE)]}]
    tool = {"role": "tool", "tool_call_id": "c", "content": [part(CHAT, 1)]}
    assert replaced(CHAT, [tool], [None]) == [{**tool, "content": [text(CHAT, NO_IMAGE)]}]


def test_an_eyas_server_takes_what_is_sent() -> None:
    said = ["a", None]

    def turns(path: str) -> list[dict[str, Any]]:
        return [user(text(path, "x"), part(path, 1), part(path, 2))]

    msgspec.json.decode(json.dumps(replaced(CHAT, turns(CHAT), said)), type=ChatMessages)
    message = {"type": "message", **replaced(RESPONSES, turns(RESPONSES), said)[0]}
    msgspec.json.decode(json.dumps(message), type=InputItem)
    body = {"model": "m", "max_tokens": 1, "messages": replaced(MESSAGES, turns(MESSAGES), said)}
    read = msgspec.json.decode(json.dumps(body), type=MessagesBody)
    content = read.messages[0].content
    assert text_of(content) == f"x\n[There is an image here. Another model describes it: a]\n{NO_IMAGE}"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("turns", "is_asked_about"),
    [
        ([user(part(CHAT, 1))], True),
        ([user(part(CHAT, 1)), {"role": "assistant", "content": "a"}], True),
        ([user(part(CHAT, 1)), {"role": "user", "content": "and now?"}], False),
        (
            [{"role": "user", "content": "see"}, {"role": "tool", "tool_call_id": "c", "content": [part(CHAT, 1)]}],
            False,
        ),
        ([{"role": "system", "content": [part(CHAT, 1)]}], False),
    ],
)
def test_the_newest_message_of_the_user(turns: Any, is_asked_about: bool) -> None:
    images = found(CHAT, turns)
    assert images is not None and images.is_asked_about == is_asked_about


def test_what_can_be_shown() -> None:
    def digest(url: object) -> bytes | None:
        images = found(CHAT, [user({"type": "image_url", "image_url": url})])
        assert images is not None
        return images.images[0].digest

    large = base64.b64encode(bytes(MAX_IMAGE)).decode()
    assert digest({"url": f"data:image/png;base64,{large}"}) == hashlib.sha256(bytes(MAX_IMAGE)).digest()
    assert digest({"url": f"data:image/png;base64,{large}AAAA"}) is None
    assert digest(data_url(1)) == digest({"url": data_url(1)}) == hashlib.sha256(png(1)).digest()
    assert digest({"url": "https://a.example/b.png"}) == hashlib.sha256(b"https://a.example/b.png").digest()
    for nothing in ("file:///etc/passwd", "data:image/svg+xml,<svg/>", "data:image/png;base64,%", "", {}, 7, None, []):
        assert digest(nothing) is None
    file = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    images = found(MESSAGES, [user(file)])
    assert images is not None and images.images[0].digest is None


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages": "image_url"}',
        b'{"messages": [{"role": "user", "content": "\\"image_url\\""}]}',
        b'{"messages": [{"role": "user", "content": {"type": "text", "text": "image_url"}}], "x": {"image_url": 1}}',
        b'{"messages": [{"tool_calls": [{"type": "image_url", "image_url": {}}], "role": "assistant"}]}',
        b'{"messages": [{"content": [{"type": "image_url\xff", "image_url": 1}]}]}',
        b'{"messages": ' + b'[{"content": ' * 50 + b'"image_url"' + b"}]" * 50 + b"}",
    ],
)
def test_what_is_no_image_is_left_alone(raw: bytes) -> None:
    assert find_images(CHAT, Body.of(raw).fields) is None


def test_there_can_be_too_many() -> None:
    turns = [user({"type": "image_url"})] * MAX_IMAGES
    images = found(CHAT, turns)
    assert images is not None and len(images.images) == MAX_IMAGES
    with pytest.raises(InvalidRequest, match="at most 1000 images"):
        found(CHAT, [*turns, turns[0]])


def test_no_other_path_has_images() -> None:
    for path in ("/v1/completions", "/v1/embeddings"):
        assert not may_have_images(path, b'{"image_url" "input_image" "image"}')


@st.composite
def histories(draw: st.DrawFn, path: str) -> list[dict[str, Any]]:
    parts = st.builds(lambda n: part(path, n), st.integers(0, 5)) | st.builds(lambda w: text(path, w), WORDS)
    content = WORDS | st.lists(parts, max_size=4)
    turn = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": content})
    return draw(st.lists(turn, min_size=1, max_size=6))


@given(st.data(), st.sampled_from(PATHS), st.booleans())
def test_only_images_change_and_what_was_written_stays(data: st.DataObject, path: str, has_sidecar: bool) -> None:
    turns = data.draw(histories(path))
    images = found(path, turns)
    kinds = {part(path, 0)["type"]}

    def in_turns(some: list[dict[str, Any]]) -> list[Any]:
        return [one for turn in some if isinstance(turn["content"], list) for one in turn["content"]]

    wanted = [one for one in in_turns(turns) if one["type"] in kinds]
    assert (images is None) == (not wanted)
    if images is None:
        return
    assert len(images.images) == len(wanted)
    said = [one.digest.hex() if one.digest and has_sidecar else None for one in images.images]
    now = replaced(path, turns, said)
    for before, after in zip(in_turns(turns), in_turns(now), strict=True):
        assert before["type"] in kinds or before == after
    assert [{**turn, "content": 0} for turn in turns] == [{**turn, "content": 0} for turn in now]
    for end in range(1, len(turns)):
        if found(path, turns[:end]) is not None:
            assert now[:end] == replaced(path, turns[:end], said)
