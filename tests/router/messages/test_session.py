"""A session of Claude Code's shape, translated and rendered by a chat template: it only grows, and all is there."""

import json
from itertools import pairwise

from tests.router.support.session import LATER, NUM_STEPS, SEARCHES, requests, texts
from tests.router.support.templates import rendered

from eyas.router.messages.translation import Translation

JOINER = "\u2060"
OPENER = "<|start|>assistant"


def chat(body: dict) -> dict:
    return json.loads(Translation.of(json.dumps(body).encode(), models=["claude-local"]).request("m"))


def prompts() -> list[str]:
    return [rendered(chat(body)) for body in requests()]


def shared(one: str, other: str) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def check_growth(found: list[str]) -> None:
    """Within a turn each prompt begins with all of the one before, but for the tools that a search has brought."""
    for number, (before, after) in enumerate(pairwise(found[: NUM_STEPS + 1])):
        common = shared(before, after)
        if number in SEARCHES:
            assert before[common:].startswith("} // namespace functions"), "all in front of the end of the tools stays"
            rest = before[common:].removesuffix(OPENER)
            assert rest in after, "and so does what is behind it"
        else:
            assert common >= len(before)


def check_presence(bodies: list[dict], found: list[str]) -> None:
    for body, prompt in zip(bodies, found, strict=True):
        plain = prompt.replace(JOINER, "")
        answered = [i for i, one in enumerate(body["messages"]) if one["content"][-1:] == [said_last(body, i)]]
        position = 0
        for number, message in enumerate(body["messages"]):
            for kind, text in texts([message]):
                if kind in ("thinking", "preamble") and answered and number <= answered[-1]:
                    assert text not in plain, "the template drops what a finished turn thought"
                    continue
                wanted = json.dumps(text, ensure_ascii=False)[1:-1] if kind == "result" else text
                at = plain.find(wanted.strip())
                assert at >= 0, (kind, text)
                if kind not in ("result", "arguments"):  # parallel ones stand in another order
                    assert at > position, "it has its place"
                    position = at
        assert plain.count("You are a helper.\nBe brief.") == 1 and "billing" not in plain
        # Three control tokens at least begin and end each message, and no text has added one.
        num_messages = len(chat(body)["messages"])
        assert (
            prompt.count("<|message|>")
            <= prompt.count("<|start|>")
            == prompt.count("<|end|>") + prompt.count("<|call|>") + 1
        )
        assert num_messages < prompt.count("<|start|>")


def said_last(body: dict, number: int) -> dict | None:
    """Return the last block of a message if it is the text of an answer."""
    message = body["messages"][number]
    last = message["content"][-1]
    return last if message["role"] == "assistant" and last["type"] == "text" else None


def test_within_a_turn_prompts_only_grow():
    check_growth(prompts())


def test_a_new_turn_begins_with_what_stays_of_the_last():
    found = prompts()
    last, again, after = found[NUM_STEPS:]
    first_thought = last.index("<|start|>assistant<|channel|>analysis")
    assert shared(last, again) >= first_thought
    assert shared(again, after) == len(again)


def test_all_is_there():
    check_presence(requests(), prompts())


def test_results_stand_behind_their_calls_in_the_order_of_the_calls():
    messages = chat(requests()[-1])["messages"]
    calls = [one["tool_calls"][0]["id"] for one in messages if "tool_calls" in one]
    assert calls == [block["id"] for one in requests()[-1]["messages"] for block in one["content"]
                     if isinstance(block, dict) and block["type"] == "tool_use"]  # fmt: skip
    for before, after in pairwise(messages):
        if "tool_calls" in before:
            assert after["role"] == "tool" and after["tool_call_id"] == before["tool_calls"][0]["id"]
    assert [one["role"] for one in messages].count("system") == 1


def test_tools_come_when_they_are_loaded_and_stay_in_that_order():
    names = [[tool["function"]["name"] for tool in chat(body)["tools"]] for body in requests()]
    first = ["Run", "ToolSearch"]
    assert names[0] == names[SEARCHES[0]] == first
    assert names[SEARCHES[0] + 1] == [*first, LATER[0]["name"]]
    assert names[-1] == [*first, LATER[0]["name"], LATER[1]["name"]]


def test_the_marker_of_the_cache_changes_nothing():
    one, other = requests()[4], requests()[4]
    other["messages"][-1]["content"][-1].pop("cache_control")
    assert chat(one) == chat(other)
