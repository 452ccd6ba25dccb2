"""The real client without a terminal: tools, a search for tools, a sub-agent, a resumed session, a wrong key."""

import json
import sys
import time
from itertools import pairwise

import pytest
from tests.clients.support.scripted import analysis, call, final
from tests.clients.support.steps import assert_asked_once, expected_log, log_lines, logged, read, tool_steps

NOTEBOOK = {
    "cells": [{"cell_type": "markdown", "id": "c1", "metadata": {}, "source": ["# Eggs"]}],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def since(box, start):
    return box.recorder.messages[start:]


def test_tools_run_once_each_and_what_was_read_comes_from_the_cache(box, new_client):
    client, start = new_client(), len(box.recorder.messages)
    box.script.on("TASK-TOOLS", *tool_steps(client.project))
    run = client.run(box.settings(), "TASK-TOOLS: count the eggs")
    assert (run.code, run.result["result"], run.result["num_turns"]) == (0, "All the eggs are counted.", 15), run.err
    assert log_lines(client.project) == expected_log()
    exchanges = since(box, start)
    assert_asked_once(exchanges)
    assert len(exchanges) == 15 and not run.result["permission_denials"]
    usage = run.model_usage
    assert usage["contextWindow"] == 131_072
    assert usage["cacheReadInputTokens"] == sum(exchange.num_cached for exchange in exchanges)
    total = sum(len(exchange.prompt_ids) for exchange in exchanges)
    assert usage["inputTokens"] + usage["cacheReadInputTokens"] == total


def test_a_tool_that_is_found_by_search(box, new_client):
    client, start = new_client(), len(box.recorder.messages)
    path = client.project / "eggs.ipynb"
    path.write_text(json.dumps(NOTEBOOK))
    edit = {"notebook_path": str(path), "cell_id": "c1", "new_source": "# Ten eggs"}
    box.script.on(
        "TASK-SEARCH",
        [read(path)],
        [analysis("I need a tool."), call(json.dumps({"query": "select:NotebookEdit"}), name="ToolSearch")],
        [call(json.dumps(edit), name="NotebookEdit")],
        [final("Ten eggs are in it.")],
    )
    run = client.run(box.settings(), "TASK-SEARCH: ten eggs", tools=("Read", "NotebookEdit"))
    assert run.result["result"] == "Ten eggs are in it.", run.out
    assert json.loads(path.read_text())["cells"][0]["source"] == "# Ten eggs"
    exchanges = since(box, start)
    assert_asked_once(exchanges)
    brought = exchanges[2]
    (tool,) = [tool for tool in brought.body["tools"] if tool["name"] == "NotebookEdit"]
    assert tool["defer_loading"] is True
    text = box.engine.tokenizer.decode(brought.prompt_ids)
    assert "type NotebookEdit = " in text and "type NotebookEdit = " not in text[: len(text) // 2]
    for before, after in pairwise(exchanges):
        assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids


def test_a_sub_agent(box, new_client):
    client, start = new_client(), len(box.recorder.messages)
    task = {
        "description": "Counts eggs",
        "prompt": "TASK-OF-AGENT: count the eggs",
        "subagent_type": "general-purpose",
        "run_in_background": False,
    }
    box.script.on("TASK-AGENT", [call(json.dumps(task), name="Agent")], [final("The agent counted.")])
    box.script.on("TASK-OF-AGENT", [logged(1)], [logged(2)], [final("Seven eggs.")])
    run = client.run(box.settings(), "TASK-AGENT: have them counted", tools=("Bash", "Agent"))
    assert run.result["result"] == "The agent counted.", run.out
    assert log_lines(client.project) == ["step 1", "step 2"]
    exchanges = since(box, start)
    assert_asked_once(exchanges)
    assert [exchange.is_agent for exchange in exchanges] == [False, True, True, True, False]
    assert "Seven eggs." in json.dumps(exchanges[-1].body["messages"][-1])
    assert {exchange.body["model"] for exchange in exchanges} == {"claude-small"}


@pytest.mark.parametrize("flag", ["--resume", "--continue"])
def test_a_resumed_session_is_read_from_the_cache(box, new_client, flag):
    client, start = new_client(), len(box.recorder.messages)
    marker = f"TASK-FIRST{flag}"
    box.script.on(marker, [analysis("One step."), logged(1)], [final("The first is done.")])
    box.script.on(f"TASK-SECOND{flag}", [logged(2)], [final("The second is done.")])
    first = client.run(box.settings(), f"{marker}: the first")
    args = (flag, first.result["session_id"]) if flag == "--resume" else (flag,)
    second = client.run(box.settings(), f"TASK-SECOND{flag}: the second", *args)
    assert second.result["result"] == "The second is done.", second.out
    assert log_lines(client.project) == ["step 1", "step 2"]
    exchanges = since(box, start)
    assert_asked_once(exchanges)
    assert len(exchanges) == 4
    assert all(exchange.cached_share >= 0.95 for exchange in exchanges[1:])


def test_a_wrong_key_is_one_line_within_seconds(box, new_client):
    client, start = new_client(), len(box.recorder.messages)
    began = time.monotonic()
    run = client.run(box.settings(ANTHROPIC_AUTH_TOKEN="wrong"), "Hello")
    assert time.monotonic() - began < 10
    assert run.code == 1 and run.result["is_error"] and run.result["api_error_status"] == 401
    line = run.result["result"]
    assert "\n" not in line and "401" in line and "this server needs a valid API key" in line
    assert [exchange.status for exchange in since(box, start)] == [401]


def test_eyas_claude_starts_it(box, new_client):
    client, start = new_client(), len(box.recorder.messages)
    box.script.on("TASK-LAUNCH", [logged(1)], [final("Launched.")])
    own = client.home / ".claude" / "settings.json"
    own.parent.mkdir()
    theirs = {"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}, "theme": "dark"}
    own.write_text(json.dumps(theirs))
    launcher = [sys.executable, "-m", "eyas", "claude", "--url", box.url, "--api-key", "a-key-of-the-test"]
    asked = ["-p", "TASK-LAUNCH", "--output-format", "json", "--allowedTools", "Bash"]
    run = client.launch([*launcher, "--binary", str(client.program), "--", *asked])
    assert run.result["result"] == "Launched." and log_lines(client.project) == ["step 1"], run.err
    assert_asked_once(since(box, start))
    assert json.loads(own.read_text()) == theirs, "nothing of ours is written into it"
