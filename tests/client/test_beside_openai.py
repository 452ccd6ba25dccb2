"""Questions to our real server, by the client and by the `openai` SDK: the same content, calls and usage."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import openai
import pytest
from tests.client.support.asked import ask, run
from tests.router.support.running import router_process
from tests.support.serving import served

import eyas
from eyas.client import AsyncClient
from eyas.client.errors import Refused
from eyas.client.pieces import Content

DEMO = str(Path(eyas.__file__).parent / "demo")
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Looks a function up.", "parameters": {
    "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 20}}, "required": ["answer"],
          "additionalProperties": False}  # fmt: skip
QUESTIONS = ["What does len do?", "\U0001f426 \u00e9\u00e8 \u4e16\u754c?"]
CASES = [
    *({"content": text, "max_tokens": 24, "temperature": 0} for text in QUESTIONS),
    pytest.param({"content": "x" * 500, "max_tokens": 24, "temperature": 0}, marks=pytest.mark.slow),
    {"content": "Hi", "max_tokens": 1, "temperature": 0},
    {"content": "Count.", "max_tokens": 24, "temperature": 1, "seed": 8, "top_p": 0.9},
    {"content": "What does len do?", "max_tokens": 24, "temperature": 0, "reasoning_effort": "high"},
    {"content": "What does len do?", "max_tokens": 60, "temperature": 0, "stop": ["e"]},
    {"content": "Look len up.", "max_tokens": 200, "temperature": 0, "tools": [TOOL], "tool_choice": "required"},
    {"content": "What?", "max_tokens": 120, "temperature": 0, "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}},
]  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with served(DEMO, "--draft-tokens", "3") as server:
        yield server


@pytest.fixture(scope="module")
def router(server, tmp_path_factory):
    model = server.get("/v1/models").json()["data"][0]["id"]
    with router_process(tmp_path_factory.mktemp("router"), {"engine": server.url}, model=model) as router:
        yield router


async def by_openai(client, model, case):
    """What the SDK puts together: content, reasoning, calls, finish reason, usage."""
    fields = {name: value for name, value in case.items() if name != "content"}
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": case["content"]}],
        stream=True,
        stream_options={"include_usage": True},
        **fields,
    )
    content, reasoning, calls, finish, usage = "", "", {}, None, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or []:
                call = calls.setdefault(part.index, ["", "", ""])
                call[0] = part.id or call[0]
                call[1] = part.function.name or call[1]
                call[2] += part.function.arguments or ""
    return content, reasoning, [tuple(call[1:]) for call in calls.values()], finish, usage


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["content"][:20])
def test_the_same_answer(server, case):
    async def main():
        async with (
            AsyncClient(server.url) as ours,
            openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as theirs,
        ):
            model, *_ = await ours.models()
            fields = {name: value for name, value in case.items() if name != "content"}
            answer = await ours.complete(case["content"], **fields)
            content, reasoning, calls, finish, usage = await by_openai(theirs, model, case)
            assert (answer.content, answer.reasoning, answer.finish_reason) == (content, reasoning, finish)
            assert [(call.name, call.arguments) for call in answer.calls] == calls
            assert bool(calls) or case.get("tool_choice") != "required" or finish == "length"
            mine = answer.usage
            assert (mine.prompt_tokens, mine.completion_tokens, mine.total_tokens) == (
                usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)  # fmt: skip
            assert answer.model == model and mine.completion_tokens > 0
            assert mine.reasoning_tokens == usage.completion_tokens_details.reasoning_tokens

    run(main())


@pytest.mark.parametrize("through", ["server", "router"])
def test_leaving_frees_the_server(server, router, through):
    """The engine runs nothing soon after, though thousands of tokens were asked for."""

    def running():
        lines = server.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))

    async def main():
        async with AsyncClient(server.url if through == "server" else router.url) as client:

            async def read(seen):
                pieces = client.stream("Tell me everything.", max_tokens=1900, ignore_eos=True)
                async with aclosing(pieces):
                    async for _ in pieces:
                        seen.set()

            seen = asyncio.Event()
            task = asyncio.create_task(read(seen))
            await seen.wait()
            while not await asyncio.to_thread(running):
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with asyncio.timeout(2):
                while await asyncio.to_thread(running):
                    await asyncio.sleep(0.01)

    run(main())


def test_the_servers_own_words(server):
    async def main():
        async with AsyncClient(server.url) as client:
            with pytest.raises(Refused) as caught:
                await client.complete("Hi", tempreature=0)
            assert caught.value.status == 400 and "temperature" in caught.value.message
            with pytest.raises(Refused) as caught:
                await client.complete("Hi", model="nothing")
            assert caught.value.status == 404

    run(main())


def test_the_same_through_the_router(server, router):
    async def main():
        async with AsyncClient(server.url) as direct, AsyncClient(router.url) as routed:
            expected = await direct.complete("What does len do?", max_tokens=48, temperature=0)
            got = await ask(routed, "What does len do?", max_tokens=48, temperature=0)
            assert got.text == expected.content and got.end.usage.completion_tokens == expected.usage.completion_tokens
            assert got.end.backend == "engine" and any(isinstance(piece, Content) for piece in got.pieces)

    run(main())
