"""What single events of a backend's stream are taken for."""

import json
from typing import Any

import pytest

from eyas.router.relay.readers import READERS, Reader
from eyas.router.upstream.part import Part

CHAT, TEXT, RESPONSES, MESSAGES = READERS


def part_of(reader: Reader, value: dict[str, Any] | str) -> Part:
    data = value if isinstance(value, str) else json.dumps(value)
    return reader.read(f"data: {data}\n\n".encode())


def kind_of(part: Part) -> str:
    """The one word for a part."""
    if part.error is not None:
        return f"error: {part.error}"
    return "last" if part.is_last else "noise" if part.is_noise else f"shows {part.text}" if part.shows else "held"


def chunk(delta: dict[str, Any] | None, finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more}


def call(**function: str) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]})


CHUNKS = [
    (chunk({"content": "a"}), "shows a"),
    (chunk({"reasoning_content": "r", "reasoning": "r"}), "shows r"),
    (chunk({"reasoning": "r", "content": None}), "shows r"),
    (call(arguments='{"a":'), 'shows {"a":'),
    (call(name="f", arguments=""), "shows "),
    (chunk({"function_call": {"name": "f", "arguments": "1"}}), "shows "),
    (chunk({"audio": {"data": "x"}}), "shows "),
    (chunk({"content": [{"type": "text", "text": "a"}]}), "shows "),
    (chunk({"content": ""}), "noise"),
    (chunk({"role": "assistant", "content": ""}), "noise"),
    (chunk({}), "noise"),
    (chunk(None), "noise"),
    (chunk({"content": ""}, index=1), "held"),
    (chunk({}, "stop"), "held"),
    (chunk({"content": "a"}, "stop"), "shows a"),
    ({"choices": [], "usage": {"prompt_tokens": 1}}, "held"),
    (chunk({}, usage={"prompt_tokens": 1}), "held"),
    ({"error": {"message": "out of memory", "code": 500}}, "error: out of memory"),
    ({"error": "out of memory"}, "error: out of memory"),
    (chunk({"content": ""}, "error", error={"message": "gone"}), "error: gone"),
    ({"error": {"message": "no key", "type": "authentication_error", "code": "invalid_api_key"}}, "error: no key"),
    # Mistakes of the client: answers, and no failures.
    ({"error": {"message": "temperature", "type": "invalid_request_error", "code": None}}, "last"),
    ({"error": {"message": "too long", "type": "BadRequestError", "code": 400}}, "last"),
    ("[DONE]", "last"),
    (" [DONE] ", "last"),
]


@pytest.mark.parametrize(("value", "kind"), CHUNKS, ids=str)
def test_chunks_of_a_chat(value: dict[str, Any] | str, kind: str) -> None:
    reader = READERS[CHAT]()
    assert kind_of(part_of(reader, chunk({"role": "assistant", "content": ""}))) == "held"
    assert kind_of(part_of(reader, value)) == kind


def test_every_choice_has_to_finish() -> None:
    reader = READERS[CHAT]()
    for index in (0, 1):
        part_of(reader, chunk({"role": "assistant"}, index=index))
    part_of(reader, chunk({}, "stop", index=1))
    assert not reader.is_complete
    part_of(reader, chunk({"content": "x"}, "length"))
    assert reader.is_complete


def test_the_guard_reads_the_first_choice() -> None:
    reader = READERS[TEXT]()
    both = {"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}
    assert part_of(reader, both).text == "a"
    assert part_of(reader, {"choices": [{"index": 1, "text": "b"}]}) == Part(
        data=b'data: {"choices": [{"index": 1, "text": "b"}]}\n\n', shows=True
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"type": "response.created", "response": {"id": "r"}}, "held"),
        ({"type": "response.output_item.added", "item": {"type": "message"}}, "held"),
        ({"type": "response.output_text.delta", "delta": "a"}, "shows a"),
        ({"type": "response.function_call_arguments.delta", "delta": "{"}, "shows {"),
        ({"type": "response.output_text.delta", "delta": ""}, "noise"),
        ({"type": "response.some_new.delta", "delta": {"x": 1}}, "shows "),
        ({"type": "response.output_text.done", "text": "a"}, "shows "),
        ({"type": "keepalive", "sequence_number": 3}, "noise"),
        ({"type": "response.completed", "response": {"id": "r"}}, "last"),
        ({"type": "response.incomplete", "response": {"id": "r"}}, "last"),
        ({"type": "response.failed", "response": {"error": {"message": "gone"}}}, "error: gone"),
        ({"type": "response.failed", "response": {"error": {"code": "invalid_prompt", "message": "so"}}}, "last"),
        ({"type": "response.failed", "response": {"error": None}}, "error: the response failed"),
        ({"type": "error", "message": "gone"}, "error: gone"),
        ({"type": "error", "code": "server_error", "message": "gone"}, "error: gone"),
        ({"type": "error", "code": "invalid_prompt", "message": "so"}, "last"),
        ({"error": {"message": "gone"}}, "error: gone"),
        ({"type": "error", "code": "invalid_api_key", "message": "key"}, "error: key"),
        ({"error": {"type": "invalid_request_error", "code": "invalid_api_key", "message": "key"}}, "error: key"),
    ],
    ids=str,
)
def test_events_of_a_response(value: dict[str, Any], kind: str) -> None:
    assert kind_of(part_of(READERS[RESPONSES](), value)) == kind


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"type": "message_start", "message": {}}, "held"),
        ({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, "held"),
        ({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}, "shows a"),
        ({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "t"}}, "shows t"),
        ({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}, "shows {"),
        ({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ""}}, "noise"),
        ({"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "s"}}, "shows "),
        ({"type": "ping"}, "noise"),
        ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, "held"),
        ({"type": "message_stop"}, "last"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, "error: busy"),
        ({"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}, "last"),
    ],
    ids=str,
)
def test_events_of_a_message(value: dict[str, Any], kind: str) -> None:
    assert kind_of(part_of(READERS[MESSAGES](), value)) == kind


def test_the_mark_of_a_chats_end_may_stand_behind_a_response() -> None:
    assert READERS[RESPONSES]().read(b"data: [DONE]\n\n").is_noise


def test_a_response_tells_where_it_is_stored() -> None:
    assert part_of(READERS[RESPONSES](), {"type": "response.created", "response": {"id": "resp_1"}}).stored == "resp_1"
