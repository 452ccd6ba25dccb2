"""The real client through `eyas router` to a real llama-server, which has a chat endpoint only for the router."""

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from tests.clients.support.box import make_model
from tests.clients.support.forced import Asked, Forcing
from tests.clients.support.steps import expected_log, log_lines, tool_steps
from tests.engines.conftest import llama_server  # noqa: F401 - a fixture
from tests.engines.support.llama import free_port, running
from tests.router.support.running import router_process
from tests.router.support.session import requests
from tests.router.support.templates import OURS, rendered

from eyas.claude.server import Server
from eyas.claude.settings import make_settings
from eyas.model.gguf.export import export_target

CONTEXT = 131_072
NUM_STEPS = 5
NAME = "small"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The model of the other tests, with a template that knows tools."""
    folder = make_model(tmp_path_factory.mktemp("models") / NAME)
    shutil.copy(OURS, folder / "chat_template.jinja")
    return folder


@pytest.fixture(scope="module")
def forcing(llama_server, folder, tmp_path_factory) -> Iterator[tuple[Forcing, str]]:  # noqa: F811
    out = tmp_path_factory.mktemp("gguf")
    export_target(folder, out / "model.gguf", weights="f32", name=NAME)
    argv = [
        *(str(llama_server), "-m", str(out / "model.gguf"), "--alias", NAME, "--jinja", "-c", str(CONTEXT)),
        *("-np", "1", "-fa", "off", "--swa-full", "-t", "2", "-b", "2048", "-ub", "512", "--poll", "0"),
        *("--host", "127.0.0.1", "--port", str(free_port())),
    ]
    with running(argv, out / "log") as client:
        one = Forcing(str(client.base_url).rstrip("/"), folder)
        with one.serving() as url:
            yield one, url


def settings(url: str) -> dict:
    return make_settings(Server(url=url, model=f"claude-{NAME}", context=CONTEXT, version=None), {})


def check_asked(asked: list[Asked]) -> None:
    """Each request came once and was answered; its prompt begins with all of the one before, which was cached."""
    assert [one.status for one in asked] == [200] * (NUM_STEPS + 1)
    prompts = [rendered(one.body) for one in asked]
    assert len(set(prompts)) == len(prompts), "a request came twice"
    for before, after in pairwise(prompts):
        assert after.startswith(before)
    for before, after in pairwise(one.usage for one in asked):
        assert after["prompt_tokens_details"]["cached_tokens"] >= before["prompt_tokens"] - 8


def test_five_tool_steps_without_an_error_or_a_second_try(forcing, new_client, tmp_path):
    one, url = forcing
    client, start = new_client(), len(one.asked)
    one.script.on("TASK-LLAMA", *tool_steps(client.project, NUM_STEPS))
    with router_process(tmp_path, {"llama": url}, model=NAME) as router:
        run = client.run(settings(router.url), "TASK-LLAMA: count the eggs")
        assert (run.code, run.result["result"]) == (0, "All the eggs are counted."), run.err
        assert run.result["num_turns"] == NUM_STEPS + 1 and not run.result["permission_denials"]
        assert run.model_usage["cacheReadInputTokens"] > run.model_usage["inputTokens"]
        assert router.backend("llama")["in_flight"] == 0
    assert log_lines(client.project) == expected_log(NUM_STEPS)
    check_asked(one.asked[start:])


def test_counting_is_llama_servers_own(forcing, tmp_path):
    body = requests()[0] | {"model": f"claude-{NAME}", "stream": False}
    counted = {name: value for name, value in body.items() if name not in ("max_tokens", "stream")}
    with router_process(tmp_path, {"llama": forcing[1]}, model=NAME) as router:
        number = httpx.post(f"{router.url}/v1/messages/count_tokens", json=counted, timeout=60).json()["input_tokens"]
        usage = httpx.post(f"{router.url}/v1/messages", json=body, timeout=60).json()["usage"]
    assert number == usage["input_tokens"] + usage["cache_read_input_tokens"]
