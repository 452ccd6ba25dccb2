"""Files of chats for tests of regeneration, and the command as it is called."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from eyas.train.commands import regenerate as command
from eyas.train.data.chats import read_chats

# The command as `eyas train regenerate` calls it.
# A shell that starts the tests in the background has its children ignore Ctrl-C.
MAIN = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from eyas import cli; "
    "sys.exit(cli.main(['train', 'regenerate', *sys.argv[1:]]))"
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str | None = None, *calls: tuple[str, str, str]) -> dict[str, Any]:
    """A recorded answer; `calls` are id, name and arguments."""
    tool_calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "assistant", "content": text} | ({"tool_calls": tool_calls} if tool_calls else {})


def result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def write(path: Path, *chats: Any) -> Path:
    """Write chats as lines: lists of messages, or whole objects."""
    lines = [json.dumps(chat if isinstance(chat, dict) else {"messages": chat}) for chat in chats]
    path.write_text("".join(line + "\n" for line in lines))
    return path


def read(path: Path) -> dict[int, dict[str, Any]]:
    """The chats of an output by their line in the input; all of them are chats that the trainer reads."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(list(read_chats([path]))) == len(lines)
    found = {line["source"]["line"]: line for line in lines}
    assert len(found) == len(lines), "a chat was answered twice"
    return found


def regenerate(prompts: Path, out: Path, url: str, *flags: str) -> int:
    """Run the command in this process."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(prompts), str(out), "--url", url, *flags]))


def start(prompts: Path, out: Path, url: str, *flags: str, **environ: str) -> subprocess.Popen[str]:
    """Start the command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, str(prompts), str(out), "--url", url, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    )
