"""What a scripted model does in a project: tool calls, each of which leaves a trace in a file, and the last words."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.clients.support.scripted import Exchange, analysis, call, final

from eyas.base.harmony.rendering import Message

LOG = "log.txt"


def bash(command: str) -> Message:
    return call(json.dumps({"command": command, "description": "Does a step"}), name="Bash")


def read(path: Path) -> Message:
    return call(json.dumps({"file_path": str(path)}), name="Read")


def logged(number: int) -> Message:
    """Return a call that appends one line to the log."""
    return bash(f"echo step {number} >> {LOG}")


def tool_steps(project: Path, num: int = 14) -> list[list[Message]]:
    """Return `num` steps, every third of which reads a file, and an answer. Some have reasoning, which is kept."""
    (project / "notes.txt").write_text("".join(f"{line} eggs in nest {line}\n" for line in range(40)))
    steps = []
    for number in range(num):
        one = read(project / "notes.txt") if number % 3 == 2 else logged(number)
        steps.append([analysis(f"Step {number} comes next, so I do it."), one] if number % 2 else [one])
    return [*steps, [analysis("All steps are done."), final("All the eggs are counted.")]]


def expected_log(num: int = 14) -> list[str]:
    return [f"step {number}" for number in range(num) if number % 3 != 2]


def log_lines(project: Path) -> list[str]:
    return (project / LOG).read_text().splitlines()


def assert_asked_once(exchanges: Sequence[Exchange]) -> None:
    """Assert that each request got a whole answer and that none came twice."""
    assert [exchange.status for exchange in exchanges] == [200] * len(exchanges)
    prompts = [(exchange.is_agent, exchange.prompt_ids) for exchange in exchanges]
    assert len(set(prompts)) == len(prompts), "a request came twice"
    for exchange in exchanges:
        assert exchange.events[-1] == {"type": "message_stop"}
        assert exchange.body["stream"] is True, "it fell back to whole answers"
