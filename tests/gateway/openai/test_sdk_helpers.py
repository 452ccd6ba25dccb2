"""What the official SDK builds on top of chat completions: parsing into models, stream helpers, the async client."""

import asyncio
import json

import openai
import pytest
from pydantic import BaseModel
from tests.gateway.support.gateway import CONTENT, REASONING
from tests.gateway.support.responses import analysis, call, final


class Person(BaseModel):
    name: str
    age: int


class GetWeather(BaseModel):
    """Weather of a city."""

    city: str


ADA = '{"name": "Ada", "age": 36}'
USER = [{"role": "user", "content": "Hi"}]
TOOL = openai.pydantic_function_tool(GetWeather)


def test_parse_into_a_model(stage):
    stage.say(analysis("Hm."), final(ADA))
    answer = stage.server.client.chat.completions.parse(model="stub", messages=USER, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)
    assert '"additionalProperties": false' in stage.request.params.grammar


def test_parse_the_arguments_of_a_call(stage):
    stage.say(call('{"city": "Graz"}', "GetWeather"))
    answer = stage.server.client.chat.completions.parse(model="stub", messages=USER, tools=[TOOL])
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments == GetWeather(city="Graz")


def test_what_was_cut_cannot_be_parsed(stage):
    stage.say(final(ADA))
    with pytest.raises(openai.LengthFinishReasonError):
        stage.server.client.chat.completions.parse(
            model="stub", messages=USER, response_format=Person, max_tokens=len(stage.reply(None, 0)) - 4
        )


def test_the_stream_helper_gives_content_and_the_whole(stage):
    stage.say(analysis(REASONING), final(CONTENT))
    with stage.server.client.chat.completions.stream(
        model="stub", messages=USER, stream_options={"include_usage": True}, logprobs=True
    ) as stream:
        events = list(stream)
        whole = stream.get_final_completion()
    assert "".join(event.delta for event in events if event.type == "content.delta") == CONTENT
    assert [event.content for event in events if event.type == "content.done"] == [CONTENT]
    assert whole.choices[0].message.content == CONTENT and whole.choices[0].finish_reason == "stop"
    assert whole.usage.completion_tokens == len(stage.reply(None, 0))
    assert b"".join(bytes(token.bytes) for token in whole.choices[0].logprobs.content) == CONTENT.encode()


def test_the_stream_helper_parses_as_it_goes(stage):
    stage.say(final(ADA))
    with stage.server.client.chat.completions.stream(model="stub", messages=USER, response_format=Person) as stream:
        parsed = [event.parsed for event in stream if event.type == "content.delta" and event.parsed]
        assert stream.get_final_completion().choices[0].message.parsed == Person(name="Ada", age=36)
    assert parsed[-1] == json.loads(ADA)


def test_the_stream_helper_gives_calls(stage):
    arguments = '{"city": "Graz"}'
    stage.say(analysis("Look."), call(arguments, "GetWeather"))
    with stage.server.client.chat.completions.stream(model="stub", messages=USER, tools=[TOOL]) as stream:
        events = [event for event in stream if event.type.startswith("tool_calls.function.arguments")]
        message = stream.get_final_completion().choices[0].message
    assert "".join(event.arguments_delta for event in events if event.type.endswith("delta")) == arguments
    assert events[-1].type.endswith("done") and events[-1].parsed_arguments == GetWeather(city="Graz")
    assert message.tool_calls[0].id.startswith("call_")


def test_what_the_stream_helper_adds_up_can_be_sent_back(stage):
    stage.say(analysis("Look."), call('{"city": "Graz"}', "GetWeather"))
    with stage.server.client.chat.completions.stream(model="stub", messages=USER, tools=[TOOL]) as stream:
        message = stream.get_final_completion().choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "7 C"}
    stage.say(final("7 C."))
    assert stage.talk([*USER, message, result], tools=[TOOL]).choices[0].message.content == "7 C."
    as_json = message.model_dump(exclude_none=True)
    assert stage.talk([*USER, as_json, result], tools=[TOOL]).choices[0].message.content == "7 C."


def test_many_at_once_through_the_async_client(stage):
    stage.say(analysis(REASONING), final(CONTENT))

    async def one(client, stream):
        answer = await client.chat.completions.create(model="stub", messages=USER, stream=stream)
        if not stream:
            return answer.choices[0].message.content
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

    async def main():
        async with openai.AsyncOpenAI(base_url=f"{stage.server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*[one(client, index % 2 == 0) for index in range(32)])

    assert asyncio.run(main()) == [CONTENT] * 32


def test_raw_responses(stage):
    stage.say(final("x"))
    raw = stage.server.client.chat.completions.with_raw_response.create(model="stub", messages=USER)
    assert raw.headers["content-type"] == "application/json" and raw.parse().choices[0].message.content == "x"
    with stage.server.client.chat.completions.with_streaming_response.create(
        model="stub", messages=USER, stream=True
    ) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache" and lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)
