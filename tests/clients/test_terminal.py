"""The real client in a terminal: tools, the title, /context, /compact, a search for tools, a sub-agent, a wrong key."""

import json
import re
import time

from tests.clients.support.scripted import call, final
from tests.clients.support.steps import assert_asked_once, expected_log, log_lines, logged, read, tool_steps
from tests.clients.support.terminal import interactive

SUMMARY = "<summary>The eggs were counted: forty of them.</summary>"


def kinds(exchanges):
    """What each request was about: a title has a format and no tools."""
    return ["title" if "format" in exchange.body["output_config"] else "turn" for exchange in exchanges]


def test_a_session(box, new_client):
    """Tools, a second question, /context, /compact, a question afterwards, the session again with --continue."""
    client, start = new_client(), len(box.recorder.messages)
    box.script.on("TASK-TERMINAL", *tool_steps(client.project))
    for name in ("SECOND", "THIRD", "FOURTH"):
        box.script.on(f"TASK-{name}", [logged(99)], [final(f"The {name} is answered.")])
    box.script.other = lambda body: [final(SUMMARY)]
    settings = box.settings(CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=None)
    allowed = ("--allowedTools", "Bash,Read")
    with interactive(client, settings, *allowed) as terminal:
        terminal.say("TASK-TERMINAL: count the eggs")
        terminal.wait("All the eggs are counted.")
        terminal.say("TASK-SECOND: go on")
        terminal.wait("The SECOND is answered.")
        asked = box.recorder.messages[start:]
        assert sorted(kinds(asked)) == ["title"] + ["turn"] * 17
        assert_asked_once(asked)
        turns = [exchange for exchange, kind in zip(asked, kinds(asked), strict=True) if kind == "turn"]
        steps, after = turns[1:15], turns[16:]  # between them the format drops the reasoning of the finished turn
        assert all(exchange.cached_share >= 0.95 for exchange in [*steps, *after])
        assert log_lines(client.project) == [*expected_log(), "step 99"]

        num_counted = len(box.recorder.on("/v1/messages/count_tokens"))
        terminal.say("/context")
        terminal.wait("Free space:")
        shown = re.search(r"([\d.]+)k/131.1k tokens", terminal.screen)
        last = turns[-1].usage
        used = last["input_tokens"] + last["cache_read_input_tokens"] + last["output_tokens"]
        assert shown is not None and abs(float(shown[1]) * 1000 - used) < 0.02 * used, "it says what the server said"
        counted = box.recorder.on("/v1/messages/count_tokens")[num_counted:]
        assert counted and {exchange.status for exchange in counted} == {200}

        start = len(box.recorder.messages)
        terminal.say("/compact")
        terminal.wait("Compacted")
        terminal.say("TASK-THIRD: go on")
        terminal.wait("The THIRD is answered.")
        summary, *after = box.recorder.messages[start:]
        assert_asked_once([summary, *after])
        assert summary.cached_share > 0.8 and len(after) == 2
        assert "forty of them" in json.dumps(after[0].body["messages"])
        assert len(after[0].prompt_ids) < len(turns[-1].prompt_ids)
    start = len(box.recorder.messages)
    with interactive(client, settings, "--continue", *allowed) as terminal:
        terminal.say("TASK-FOURTH: go on")
        terminal.wait("The FOURTH is answered.")
        again = box.recorder.messages[start:]
        assert_asked_once(again)
        assert all(
            exchange.cached_share >= 0.95 for exchange in again if "format" not in exchange.body["output_config"]
        )


def test_a_search_for_tools_and_a_sub_agent(box, new_client):
    client, start = new_client(), len(box.recorder.messages)
    path = client.project / "eggs.ipynb"
    path.write_text(json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    edit = {"notebook_path": str(path), "new_source": "# Six eggs", "cell_type": "markdown", "edit_mode": "insert"}
    task = {"description": "Counts", "prompt": "TASK-INNER: count", "subagent_type": "general-purpose"}
    box.script.on("TASK-INNER", [logged(1)], [final("Six eggs.")])
    box.script.on(
        "TASK-OUTER",
        [call(json.dumps(task | {"run_in_background": False}), name="Agent")],
        [read(path)],
        [call(json.dumps({"query": "select:NotebookEdit"}), name="ToolSearch")],
        [call(json.dumps(edit), name="NotebookEdit")],
        [final("Six eggs are written down.")],
    )
    with interactive(client, box.settings(), "--allowedTools", "Bash,Read,Agent,NotebookEdit") as terminal:
        terminal.say("TASK-OUTER: write them down")
        terminal.wait("Six eggs are written down.")
    assert log_lines(client.project) == ["step 1"]
    (cell,) = json.loads(path.read_text())["cells"]
    assert cell["source"] == "# Six eggs"
    exchanges = box.recorder.messages[start:]
    assert_asked_once(exchanges)
    assert sorted(exchange.is_agent for exchange in exchanges) == [False] * 5 + [True] * 2


def test_a_tool_that_is_not_allowed_is_asked_for(box, new_client):
    """The settings' mode is the one in which the person decides: no request judges whether a call is dangerous."""
    client, start = new_client(), len(box.recorder.messages)
    box.script.on("TASK-ASK", [logged(1)], [final("It is logged.")])
    with interactive(client, box.settings()) as terminal:
        terminal.say("TASK-ASK: log it")
        terminal.wait("Do you want to")
        assert not (client.project / "log.txt").exists()
        terminal.press("Enter")
        terminal.wait("It is logged.")
    assert log_lines(client.project) == ["step 1"]
    exchanges = box.recorder.messages[start:]
    assert_asked_once(exchanges)
    assert len(exchanges) == 2 and "safeguards" not in exchanges[0].body


def test_a_wrong_key_is_shown_within_seconds(box, new_client):
    client, start = new_client(), len(box.recorder.messages)
    with interactive(client, box.settings(ANTHROPIC_AUTH_TOKEN="wrong")) as terminal:
        began = time.monotonic()
        terminal.say("Hello")
        terminal.wait("this server needs a valid API key", limit_s=10)
        assert time.monotonic() - began < 10
    assert [exchange.status for exchange in box.recorder.messages[start:]] == [401]
