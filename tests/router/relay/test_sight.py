"""Images through the relay: the vision model answers, or describes them for the text model, whose prompts only grow."""

import asyncio
import base64
import copy
import json
import os
import time
from itertools import pairwise
from typing import Any

import aiohttp
import openai
import pytest
from tests.router.relay.test_leaving import until
from tests.router.support.script import Script
from tests.router.support.sighted import (
    CHAT,
    DESCRIBED,
    MESSAGES,
    RESPONSES,
    SEEN,
    Sighted,
    data_url,
    part,
    sighted,
    text,
)

from eyas.base.serving.budgets import Budgets
from eyas.gateway.anthropic.text import NO_IMAGE
from eyas.router.settings.schema import RouteSettings

OPENAI = (CHAT, RESPONSES)
PATHS = (*OPENAI, MESSAGES)
TOOLS: dict[str, Any] = {
    CHAT: {"type": "function", "function": {"name": "look"}},
    RESPONSES: {"type": "function", "name": "look", "parameters": {}},
    MESSAGES: {"name": "look", "input_schema": {"type": "object"}},
}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def sent(sight: Sighted) -> Any:
    """The newest body that the text model got."""
    return sight.a.asked[-1].json


@pytest.mark.parametrize("path", OPENAI)
def test_a_question_about_an_image_goes_to_the_vision_model(path: str) -> None:
    async def main() -> None:
        async with sighted() as sight:
            turns = [user(part(path, 2)), {"role": "assistant", "content": "a"}, user(text(path, "?"), part(path, 1))]
            for fields in ({}, {"tools": []}, {"tools": None}, {"model": None}, {"model": "claude-scripted"}):
                headers, _ = await sight.post(path, turns, **fields)
                assert (headers["x-eyas-backend"], headers["x-eyas-sidecar"]) == ("v", "vision")
                assert "x-eyas-images" not in headers
                body = sight.v.asked[-1].json
                assert body.pop("model") == "seer"
                assert body == {"messages" if path == CHAT else "input": turns} | {
                    name: value for name, value in fields.items() if name != "model"
                }
            assert not sight.a.asked and not sight.questions
            assert [one.model for one in await sight.router.reported(5)] == ["seer"] * 5

    asyncio.run(main())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("is_ours", [True, False])
def test_the_text_model_reads_descriptions(path: str, is_ours: bool) -> None:
    async def main() -> None:
        async with sighted(is_ours=is_ours) as sight:
            with_tools = [user(text(path, "see"), part(path, 1), part(path, 2), part(path, 1))]
            later = [*with_tools, {"role": "assistant", "content": "a"}, {"role": "user", "content": "and?"}]
            headers, _ = await sight.post(path, with_tools, tools=[TOOLS[path]])
            assert (headers["x-eyas-backend"], headers["x-eyas-images"]) == ("a", "described=3, omitted=0")
            assert "x-eyas-sidecar" not in headers
            first = sent(sight)
            headers, _ = await sight.post(path, later)
            assert headers["x-eyas-images"] == "described=3, omitted=0"
            assert len(sight.questions) == 2, "one for each image"
            field = "input" if path == RESPONSES else "messages"
            assert sent(sight)[field][:1] == first[field]
            content = first[field][0]["content"]
            words = content if isinstance(content, str) else "".join(one["text"] for one in content)
            assert words == f"see\n{DESCRIBED}\n{DESCRIBED}\n{DESCRIBED}"
            assert sight.router.in_flight() == 0
            question = sight.questions[0].json
            assert question["model"] == "seer"
            assert question["messages"][0]["content"][1]["image_url"]["url"] in (data_url(1), data_url(2))

    asyncio.run(main())


@pytest.mark.parametrize("path", PATHS)
def test_without_a_vision_model_a_line_says_that_there_is_an_image(path: str) -> None:
    async def main() -> None:
        async with sighted(without="ve") as sight:
            turns = [user(part(path, 1))]
            headers, _ = await sight.post(path, turns)
            assert headers["x-eyas-images"] == "described=0, omitted=1"
            wanted = turns if path == MESSAGES else [user(text(path, NO_IMAGE))]
            assert sent(sight)["input" if path == RESPONSES else "messages"] == wanted, "an eyas server does it itself"
            await sight.post(path, [{"role": "user", "content": 'an "image", "image_url", "input_image"'}])
            await sight.router.reported(2)

    asyncio.run(main())


def test_without_images_nothing_changes() -> None:
    async def main() -> None:
        raw = b'{ "x":1e2,"model":"scripted",  "messages":[ {"role":"user","content":"an \\"image_url\\" \\u00e9"} ] }'
        headers = {"Content-Type": "application/json"}
        async with (
            sighted() as sight,
            sight.router.session.post(sight.router.url + CHAT, data=raw, headers=headers) as r,
        ):
            assert r.status == 200 and not {"x-eyas-images", "x-eyas-sidecar"} & {name.lower() for name in r.headers}
            wanted = (
                b'{"x":1e2,"model":"scripted","messages":[ {"role":"user","content":"an \\"image_url\\" \\u00e9"} ]}'
            )
            assert sight.a.asked[0].body == wanted

    asyncio.run(main())


def test_large_images() -> None:
    async def main() -> None:
        async with sighted() as sight:
            urls = [f"data:image/png;base64,{base64.b64encode(os.urandom(200 << 10)).decode()}" for _ in range(3)]
            turns = [user(*({"type": "image_url", "image_url": {"url": url}} for url in urls))]
            for _ in range(2):
                headers, _ = await sight.post(CHAT, turns, tools=[TOOLS[CHAT]])
                assert headers["x-eyas-images"] == "described=3, omitted=0"
            asked = [one.json["messages"][0]["content"][1]["image_url"]["url"] for one in sight.questions]
            assert sorted(asked) == sorted(urls)

    asyncio.run(main())


def test_routes() -> None:
    async def main() -> None:
        route = RouteSettings(name="MATH", effort="high")
        async with sighted(routes=(route,)) as sight:
            turns = [user(part(CHAT, 1))]
            for model in ("route/MATH", "route/auto"):
                headers, _ = await sight.post(CHAT, turns, model=model)
                assert headers["x-eyas-sidecar"] == "vision" and "x-eyas-route" not in headers
                assert sight.v.asked[-1].json == {"model": "seer", "messages": turns}
                headers, _ = await sight.post(CHAT, turns, model=model, tools=[TOOLS[CHAT]])
                assert (headers["x-eyas-route"], headers["x-eyas-images"]) == ("MATH", "described=1, omitted=0")
                assert sent(sight)["reasoning_effort"] == "high"

    asyncio.run(main())


def test_a_model_that_is_named_gets_its_request_as_it_is() -> None:
    async def main() -> None:
        async with sighted() as sight:
            turns = [user(part(CHAT, 1))]
            headers, _ = await sight.post(CHAT, turns, model="seer", tools=[TOOLS[CHAT]])
            assert headers["x-eyas-backend"] == "v" and "x-eyas-sidecar" not in headers
            assert sight.v.asked[0].json["messages"] == turns and not sight.questions

    asyncio.run(main())


@pytest.mark.parametrize("path", PATHS)
def test_the_prompts_of_a_session_only_grow(path: str) -> None:
    """Even while the vision model comes and goes: what has once been left out stays so."""

    async def main() -> None:
        async with sighted(is_ours=False, budgets=Budgets(queue_s=1, prefill_s=5, stall_s=5)) as sight:
            turns: list[dict[str, Any]] = []
            bodies, field = [], "input" if path == RESPONSES else "messages"
            for number in range(8):
                sight.v.script = Script(text=f"{SEEN} {number}", status=400 if number in (2, 5) else 200)
                turns += [user(text(path, f"look {number}"), part(path, number)), {"role": "assistant", "content": "a"}]
                asked = [*turns, {"role": "user", "content": "and?"}]
                headers, _ = await sight.post(path, asked, tools=[TOOLS[path]], session="s1")
                num_omitted = (number >= 2) + (number >= 5)
                assert headers["x-eyas-images"] == f"described={number + 1 - num_omitted}, omitted={num_omitted}"
                bodies.append(sent(sight)[field][:-1])
            for before, after in pairwise(bodies):
                assert json.dumps(after[: len(before)]) == json.dumps(before)
            assert len(sight.questions) == 8
            await sight.post(path, asked, tools=[TOOLS[path]], session="s2")
            assert len(sight.questions) == 10, "another session asks again for what failed"

    asyncio.run(main())


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_session_of_claude_code_only_grows(is_ours: bool) -> None:
    """Images come in results of tools, several at once; the marker of the cache moves with the newest message."""

    async def main() -> None:
        async with sighted(is_ours=is_ours) as sight:
            turns: list[dict[str, Any]] = [user(text(MESSAGES, "look at the folder"))]
            bodies, url = [], sight.router.url + MESSAGES
            for number in range(6):
                call = {"type": "tool_use", "id": f"t{number}", "name": "look", "input": {"n": number}}
                shown = [text(MESSAGES, f"page {number}"), part(MESSAGES, number), part(MESSAGES, 0)]
                result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": shown}
                turns += [{"role": "assistant", "content": [call]}, user(result, part(MESSAGES, 100 + number))]
                sight.v.script = Script(text=f"{SEEN} {number}", status=500 if number == 3 else 200)
                asked = copy.deepcopy(turns)
                asked[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
                body = {
                    "model": "claude-x",
                    "max_tokens": 9,
                    "stream": True,
                    "messages": asked,
                    "tools": [TOOLS[MESSAGES]],
                }
                headers = {"x-claude-code-session-id": "s1"}
                async with sight.router.session.post(url, json=body, headers=headers) as response:
                    await response.read()
                    num_omitted = 2 if number >= 3 else 0
                    wanted = f"described={3 * (number + 1) - num_omitted}, omitted={num_omitted}"
                    assert response.headers["x-eyas-images"] == wanted
                bodies.append(sent(sight)["messages"])
            for before, after in pairwise(bodies):
                assert json.dumps(after[: len(before)]) == json.dumps(before)
            assert b"image/png" not in sight.a.asked[-1].body and len(sight.questions) == 12

    asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_vision_model(stream: bool) -> None:
    async def main() -> None:
        async with sighted(script=Script(text=SEEN, before_s=30)) as sight:

            async def read() -> None:
                body = {
                    "model": "scripted",
                    "messages": [user(part(CHAT, 1))],
                    "tools": [TOOLS[CHAT]],
                    "stream": stream,
                }
                url = sight.router.url + CHAT
                async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
                    await response.read()

            asking = asyncio.create_task(read())
            await until(lambda: sight.v.num_running() == 1, 5)
            assert sight.router.in_flight() == 1
            asking.cancel()
            await until(lambda: sight.v.num_running() == 0)
            await until(lambda: sight.router.in_flight() == 0)
            (outcome,) = await sight.router.reported(1)
            assert outcome.status == 499 and sight.v.asked[0].ended == "left"
            assert not sight.a.asked and not sight.router.failures()

    asyncio.run(main())


def test_a_stream_hears_of_the_wait() -> None:
    async def main() -> None:
        async with sighted(script=Script(text=SEEN, before_s=1.5)) as sight:
            body = {"model": "scripted", "messages": [user(part(CHAT, 1))], "tools": [TOOLS[CHAT]], "stream": True}
            async with sight.router.session.post(sight.router.url + CHAT, json=body) as response:
                raw = await response.read()
            assert raw.startswith(b': eyas {"state":"reading"}\n\n') and raw.endswith(b"data: [DONE]\n\n")
            assert "x-eyas-images" not in response.headers, "the head has gone before"
            assert sent(sight)["messages"] == [user(text(CHAT, DESCRIBED))]

    asyncio.run(main())


def test_half_of_the_time_is_for_the_answer() -> None:
    async def main() -> None:
        budgets = Budgets(queue_s=5, prefill_s=5, stall_s=5, total_s=2.0)
        async with sighted(script=Script(text=SEEN, before_s=30), budgets=budgets) as sight:
            began = time.monotonic()
            headers, _ = await sight.post(CHAT, [user(part(CHAT, 1))], tools=[TOOLS[CHAT]])
            assert 0.9 < time.monotonic() - began < 1.9
            assert headers["x-eyas-images"] == "described=0, omitted=1"

    asyncio.run(main())


def test_a_vision_model_that_fails_counts_as_one() -> None:
    async def main() -> None:
        async with sighted(script=Script(status=500)) as sight:
            for number in range(7):
                headers, _ = await sight.post(CHAT, [user(part(CHAT, number))], tools=[TOOLS[CHAT]])
                assert headers["x-eyas-images"] == "described=0, omitted=1"
            assert len(sight.v.asked) == 5, "then its breaker is open"
            assert sight.router.failures() == [("v", "status")] * 5

    asyncio.run(main())


def test_the_conversation_of_a_response_stays_with_its_model() -> None:
    async def main() -> None:
        async with sighted() as sight:
            sight.v.script = Script(mark="seen", text=SEEN)
            headers, seen = await sight.post(RESPONSES, [user(part(RESPONSES, 1))])
            assert headers["x-eyas-sidecar"] == "vision"
            headers, _ = await sight.post(RESPONSES, "and?", previous_response_id=seen["id"])
            assert (headers["x-eyas-backend"], headers["x-eyas-sidecar"]) == ("v", "vision")
            headers, read = await sight.post(RESPONSES, "hello")
            headers, _ = await sight.post(RESPONSES, [user(part(RESPONSES, 1))], previous_response_id=read["id"])
            assert (headers["x-eyas-backend"], headers["x-eyas-images"]) == ("a", "described=1, omitted=0")

    asyncio.run(main())


def test_embeddings_go_to_the_model_for_them() -> None:
    async def main() -> None:
        async with sighted() as sight:
            for model in (None, "scripted", "claude-scripted", "vectors"):
                body = {"input": ["a", "b"]} | ({"model": model} if model else {})
                async with sight.router.session.post(sight.router.url + "/v1/embeddings", json=body) as response:
                    assert response.status == 200 and len((await response.json())["data"]) == 2
                    assert response.headers["x-eyas-backend"] == "e"
                    is_named = model == "vectors"
                    assert response.headers.get("x-eyas-sidecar") == (None if is_named else "embeddings")
                assert sight.e.asked[-1].json["model"] == "vectors"

    asyncio.run(main())


def test_without_a_model_for_embeddings_the_resident_model_is_asked() -> None:
    async def main() -> None:
        body = {"input": "a"}
        async with (
            sighted(without="ve") as sight,
            sight.router.session.post(sight.router.url + "/v1/embeddings", json=body) as response,
        ):
            assert response.headers["x-eyas-backend"] == "a" and "x-eyas-sidecar" not in response.headers

    asyncio.run(main())


def test_the_official_sdk() -> None:
    async def main() -> None:
        async with sighted() as sight:
            client = openai.AsyncOpenAI(base_url=f"{sight.router.url}/v1", api_key="none", max_retries=0)
            async with client:
                image: Any = user(text(CHAT, "what?"), part(CHAT, 1))
                chat = client.chat.completions.with_raw_response
                raw = await chat.create(model="scripted", messages=[image])
                assert raw.headers["x-eyas-sidecar"] == "vision"
                assert raw.parse().choices[0].message.content == SEEN
                raw = await chat.create(model="scripted", messages=[image], tools=[TOOLS[CHAT]])
                assert raw.headers["x-eyas-images"] == "described=1, omitted=0"
                item: Any = user(text(RESPONSES, "what?"), part(RESPONSES, 1))
                answer = await client.responses.create(model="scripted", input=[item])
                assert answer.output_text == SEEN
                vectors = await client.embeddings.create(model="scripted", input=["a"], encoding_format="float")
                assert vectors.data[0].embedding == [0.25, -0.5] and vectors.model == "vectors"

    asyncio.run(main())
