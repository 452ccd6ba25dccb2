"""How much of each prompt comes from the cache: a session of the real client, and the same with treatments left out.

`make test-clients ARGS="tests/clients/test_reuse.py -s"` prints the table of docs/log/claude-code.md.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from tests.clients.support.box import KEY, Box, serving
from tests.clients.support.client import Client
from tests.clients.support.scripted import Exchange, analysis, call, final
from tests.clients.support.steps import assert_asked_once, bash, logged, tool_steps
from tests.clients.support.terminal import interactive

from eyas.gateway.anthropic import history, question, system
from eyas.gateway.anthropic.body import TextBlock
from eyas.gateway.anthropic.tools import DeclaredTools, declared_tools

NUM_STEPS = 14
PAGE = 16  # tokens
WITH_LINE = {"CLAUDE_CODE_ATTRIBUTION_HEADER": None}  # the settings switch it off; other clients send it


@dataclass
class Session:
    """A conversation of `NUM_STEPS` tool steps, a second question to it, and two new conversations."""

    exchanges: list[Exchange]

    @property
    def steps(self) -> list[Exchange]:
        return self.exchanges[: NUM_STEPS + 1]

    @property
    def second(self) -> list[Exchange]:
        return self.exchanges[NUM_STEPS + 1 : -2]

    @property
    def new(self) -> list[Exchange]:
        return self.exchanges[-2:]


def have_session(box: Box, client: Client) -> Session:
    start = len(box.recorder.messages)
    steps = tool_steps(client.project, NUM_STEPS)
    steps[6] = [analysis("A tool is missing."), call(json.dumps({"query": "select:NotebookEdit"}), name="ToolSearch")]
    box.script.on("TASK-FIRST", *steps)
    box.script.on("TASK-MORE", [analysis("More."), logged(20)], [bash("true")], [final("There are no more.")])
    box.script.on("TASK-OTHER", [final("Nothing to do.")])
    settings = box.settings(**WITH_LINE)
    run = client.run(settings, "TASK-FIRST: count the eggs")
    client.run(settings, "TASK-MORE: and the rest", "--resume", run.result["session_id"])
    for number in range(2):
        client.run(settings, f"TASK-OTHER: rest {number} hours")
    session = Session(box.recorder.messages[start:])
    assert_asked_once(session.exchanges)
    assert len(session.exchanges) == NUM_STEPS + 1 + 3 + 2
    return session


def share(exchanges: Sequence[Exchange]) -> float:
    """The share of all prompt tokens that the clients were told came from the cache."""
    usages = [exchange.usage for exchange in exchanges]
    cached = sum(usage["cache_read_input_tokens"] for usage in usages)
    return cached / (cached + sum(usage["input_tokens"] for usage in usages))


def num_common(one: Exchange, other: Exchange) -> int:
    pairs = zip(one.prompt_ids, other.prompt_ids, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.prompt_ids), len(other.prompt_ids)))


@pytest.fixture(scope="module")
def session(model, program, tmp_path_factory) -> Session:
    with serving(model) as box:
        return have_session(box, Client(program, tmp_path_factory.mktemp("client")))


def test_each_step_reads_only_what_is_new(session):
    assert share(session.steps[1:]) >= 0.95 and share(session.second[1:]) >= 0.95
    assert share(session.steps[1:] + session.second) >= 0.95
    for turn in (session.steps, session.second):
        for before, after in pairwise(turn):
            assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
            assert after.num_cached > len(before.prompt_ids) - 2 * PAGE


def test_what_is_before_the_dropped_reasoning_stays_cached(session):
    last, after = session.steps[-1], session.second[0]
    common = num_common(last, after)
    assert len(session.steps[0].prompt_ids) < common < len(last.prompt_ids), "the reasoning of the turn is gone"
    assert common - 6 * PAGE < after.num_cached <= common


def test_a_new_conversation_shares_its_tools_and_instructions(session):
    for new in session.new:
        assert num_common(session.steps[0], new) >= 0.75 * len(new.prompt_ids)
        assert new.cached_share >= 0.75


def test_a_server_that_keeps_reasoning_reads_only_what_is_new(model, new_client):
    """In one process of the client: when it resumes a session, it leaves the reasoning out itself."""
    client = new_client()
    with serving(model, keep_reasoning=True) as box:
        box.script.on("TASK-KEEP", *tool_steps(client.project, NUM_STEPS))
        box.script.on("TASK-MORE", [analysis("More."), logged(20)], [final("There are no more.")])
        with interactive(client, box.settings(), "--allowedTools", "Bash,Read") as terminal:
            terminal.say("TASK-KEEP: count the eggs")
            terminal.wait("All the eggs are counted.")
            terminal.say("TASK-MORE: and the rest")
            terminal.wait("There are no more.")
        turns = box.recorder.messages
    assert_asked_once(turns)
    assert len(turns) == NUM_STEPS + 1 + 2 and all(exchange.cached_share >= 0.95 for exchange in turns[1:])
    for before, after in pairwise(turns):
        assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids


def keep_line(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(system, "ATTRIBUTION", re.compile(r"(?!)"))


def render_deferred(patch: pytest.MonkeyPatch) -> None:
    def all_at_once(fields):
        return DeclaredTools(all=declared_tools(fields).all, deferred=frozenset())

    patch.setattr(question, "declared_tools", all_at_once)


def hoist_system(patch: pytest.MonkeyPatch) -> None:
    class Hoisting(history.History):
        def read(self, messages) -> None:
            super().read(sorted(messages, key=lambda message: message.role != "system"))

    patch.setattr(question, "History", Hoisting)


def tell_forms_apart(patch: pytest.MonkeyPatch) -> None:
    """A list of blocks is written as JSON, as templates do that know strings only."""

    def as_json(plain):
        def text(content):
            if isinstance(content, str) or not all(isinstance(block, TextBlock) for block in content):
                return plain(content)
            return json.dumps([{"type": "text", "text": block.text} for block in content])

        return text

    patch.setattr(history, "text_of", as_json(history.text_of))
    patch.setattr(history, "system_text", as_json(history.system_text))


LEFT_OUT = {
    "attribution line kept": keep_line,
    "deferred tools as they come": render_deferred,
    "system messages moved to the front": hoist_system,
    "list and string apart": tell_forms_apart,
}


def with_reminders(body: dict) -> dict:
    """Return a body with a short system message after every fifth tool result, as the client adds at times."""
    messages, num_results = [], 0
    for message in body["messages"]:
        messages.append(message)
        if isinstance(message["content"], list) and message["content"][0]["type"] == "tool_result":
            num_results += 1
            if num_results % 5 == 0:
                messages.append({"role": "system", "content": f"{num_results} steps have passed. Tell how it goes."})
    return body | {"messages": messages}


def again(model: Path, session: Session) -> tuple[list[float], int]:
    """Send the same bodies to a server with an empty cache; returns shares from the cache, and tokens read."""
    with serving(model) as box, httpx.Client(base_url=box.url, timeout=120) as http:
        box.port.script = lambda body: [final("So.")]
        headers = {"authorization": f"Bearer {KEY}"}
        for exchange in session.exchanges:
            body = with_reminders(exchange.body)
            assert http.post("/v1/messages", json=body, headers=headers).status_code == 200
        found = Session(box.recorder.messages)
    num_read = sum(exchange.usage["input_tokens"] for exchange in found.exchanges)
    return [share(found.steps[1:]), share(found.second), *(share([new]) for new in found.new)], num_read


@pytest.fixture(scope="module")
def treated(model, session) -> tuple[list[float], int]:
    found = again(model, session)
    print("\n\n| left out | tool steps | second question | second conversation | third conversation | tokens read |")
    print("|---|---|---|---|---|---|")
    show("nothing", *found)
    return found


def show(name: str, shares: list[float], num_read: int) -> None:
    print(f"| {name} | " + " | ".join(f"{100 * value:.1f} %" for value in shares) + f" | {num_read:,} |")


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_treatment_left_out_is_seen(session, model, monkeypatch, treated, name):
    LEFT_OUT[name](monkeypatch)
    shares, num_read = again(model, session)
    show(name, shares, num_read)
    losses = [before - value for before, value in zip(treated[0], shares, strict=True)]
    assert max(losses) > 0.01, "no column is worse"
