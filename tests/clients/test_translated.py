"""The real client through `eyas router` to the chat endpoint of a real engine: reasoning, a search for tools."""

import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.clients.support.box import KEY, NAME
from tests.clients.support.chat_script import ChatScript
from tests.clients.support.scripted import Exchange, Recorder, ScriptedPort, analysis, call, final
from tests.clients.support.steps import expected_log, log_lines, read, tool_steps
from tests.clients.test_headless import NOTEBOOK
from tests.gateway.support.gateway import running
from tests.router.support.running import router_process

from eyas.base.settings.config import EngineConfig
from eyas.claude.server import Server
from eyas.claude.settings import make_settings
from eyas.engine.ports.process import EngineProcess
from eyas.gateway.app import create_app
from eyas.gateway.server.context import GatewayOptions

CONTEXT = 131_072
CHAT = "/v1/chat/completions"


class Stranger:
    """An ASGI app around our server that makes another of it: it has no messages, and its models are not ours."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._models = JSONResponse({"data": [{"id": NAME, "owned_by": "someone", "max_model_len": CONTEXT}]})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        assert not path.startswith("/v1/messages")
        await (self._models if path == "/v1/models" else self._app)(scope, receive, send)


class Place:
    """A server with a chat endpoint and its script, behind the router at `url`."""

    def __init__(self, recorder: Recorder, script: ChatScript, url: str) -> None:
        self.recorder = recorder
        self.script = script
        self.settings = make_settings(
            Server(url=url, model=f"claude-{NAME}", context=CONTEXT, version=None), {}, key=KEY
        )

    def asked(self, start: int = 0) -> list[Exchange]:
        """Return the client's requests; those of the router itself have no tools."""
        return [exchange for exchange in self.recorder.on(CHAT) if "tools" in exchange.body][start:]


@pytest.fixture(scope="module")
def place(model, tmp_path_factory) -> Iterator[Place]:
    engine = EngineProcess(EngineConfig(model=str(model), draft="none", context=CONTEXT, concurrency=4))
    script = ChatScript()
    port = ScriptedPort(engine, engine.tokenizer, script)
    recorder = Recorder(create_app(port, engine.tokenizer, GatewayOptions(served_name=NAME)))
    folder = tmp_path_factory.mktemp("router")
    with running(Stranger(recorder), engine) as url, router_process(folder, {"box": url}, model=NAME) as router:
        yield Place(recorder, script, router.url)
        assert router.backend("box")["in_flight"] == 0


def check_asked(exchanges: list[Exchange]) -> None:
    """Each request came once, and got a whole answer."""
    assert [exchange.status for exchange in exchanges] == [200] * len(exchanges)
    assert len({exchange.prompt_ids for exchange in exchanges}) == len(exchanges), "a request came twice"
    assert all(exchange.body["stream"] for exchange in exchanges), "it fell back to whole answers"


def test_tools_run_once_each_and_prompts_only_grow(place, new_client):
    client, start = new_client(), len(place.asked())
    place.script.on("TASK-CHAT", *tool_steps(client.project))
    run = client.run(place.settings, "TASK-CHAT: count the eggs")
    assert (run.code, run.result["result"], run.result["num_turns"]) == (0, "All the eggs are counted.", 15), run.err
    assert log_lines(client.project) == expected_log() and not run.result["permission_denials"]
    exchanges = place.asked(start)
    check_asked(exchanges)
    assert len(exchanges) == 15
    for before, after in pairwise(exchanges):
        assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
    usage = run.model_usage
    assert usage["cacheReadInputTokens"] == sum(exchange.num_cached for exchange in exchanges)
    total = sum(len(exchange.prompt_ids) for exchange in exchanges)
    assert usage["inputTokens"] + usage["cacheReadInputTokens"] == total


def test_a_tool_that_is_found_by_search_costs_one_reading_of_the_messages(place, new_client):
    client, start = new_client(), len(place.asked())
    path = client.project / "eggs.ipynb"
    path.write_text(json.dumps(NOTEBOOK))
    edit = {"notebook_path": str(path), "cell_id": "c1", "new_source": "# Ten eggs"}
    place.script.on(
        "TASK-FIND",
        [read(path)],
        [analysis("I need a tool."), call(json.dumps({"query": "select:NotebookEdit"}), name="ToolSearch")],
        [call(json.dumps(edit), name="NotebookEdit")],
        [final("Ten eggs are in it.")],
    )
    run = client.run(place.settings, "TASK-FIND: ten eggs", tools=("Read", "NotebookEdit"))
    assert run.result["result"] == "Ten eggs are in it.", run.out
    assert json.loads(path.read_text())["cells"][0]["source"] == "# Ten eggs"
    exchanges = place.asked(start)
    check_asked(exchanges)
    names = [[tool["function"]["name"] for tool in exchange.body["tools"]] for exchange in exchanges]
    assert names[0] == names[1] and names[2] == names[3] == [*names[1], "NotebookEdit"]
    shares = [exchange.num_cached / len(exchange.prompt_ids) for exchange in exchanges]
    assert shares[1] > 0.95 and shares[3] > 0.95
    assert 0.4 < shares[2] < 0.95, "the tools in front stay cached, the messages are read once more"
