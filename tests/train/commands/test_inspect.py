"""`eyas train inspect` on a file of chats, with the demo model's tokens."""

from __future__ import annotations

import argparse
import json
import os
import pty
import sys
from contextlib import suppress
from threading import Thread

import pytest

from eyas.base.errors import UserError
from eyas.model.checkpoints.head_options import read_counts
from eyas.train.commands import inspect

CHATS = [
    {"messages": [{"role": "user", "content": f"Question {n}"}, {"role": "assistant", "content": f"Answer {n}"}]}
    for n in (1, 2)
]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(chat) + "\n" for chat in CHATS))
    return path


def run(*words):
    parser = argparse.ArgumentParser()
    inspect.add_arguments(parser)
    return inspect.run(parser.parse_args([str(word) for word in words]))


def test_one_chat_is_shown_and_all_are_counted(path, capsys):
    assert run(path, "--chat", 2, "--rule", "faithful") == 0
    out = capsys.readouterr().out
    assert f"{path}:2, turn 1: supervised tokens stand between" in out
    assert "Question 2" in out and "Question 1" not in out
    assert "<|start|>assistant[[<|channel|>final<|message|>Answer 2<|return|>]]" in out
    assert "chats         2\ndocuments     2, one a turn\n" in out and "faithful: " in out
    run(path, "--chat", 0)
    assert "Question" not in capsys.readouterr().out


def test_coverage_is_shown_and_counts_are_written(path, tmp_path, capsys):
    counts = tmp_path / "counts.json"
    run(path, "--draft-vocab", 64, "--write-counts", counts)
    assert "of them in the draft vocabulary" in capsys.readouterr().out
    assert read_counts(counts, 4096).sum() > 10


def test_turns_beyond_the_context_are_counted(path, capsys):
    run(path, "--context", 8)
    assert "chats         2; 2 turns left out: longer than the context\ndocuments     0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--chat", 3), "has 2 chats, and no chat 3"),
        (("--chat", -1), "--chat"),
        (("--context", 0), "--context"),
        (("--draft-vocab", 5), "a draft vocabulary of 5 is not possible"),
        (("--target", "/nowhere/at/all"), "/nowhere/at/all"),
    ],
)
def test_what_cannot_be_is_refused(path, words, text):
    with pytest.raises(UserError, match=text):
        run(path, *words)


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_a_terminal_gets_colours_unless_they_are_not_wanted(path, monkeypatch, no_colour):
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read():
        with suppress(OSError):  # EIO: the other side is closed
            while piece := os.read(ours, 4096):
                shown.extend(piece)

    reader = Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, os.fdopen(theirs, "w") as terminal:
        patch.setenv("NO_COLOR", no_colour)
        patch.setattr(sys, "stdout", terminal)
        run(path)
    reader.join()
    os.close(ours)
    assert (b"\033[32mAnswer 1\033[0m" in shown) == (b"\033" in shown) == (not no_colour)
    assert (b"[[" in shown) == bool(no_colour)
