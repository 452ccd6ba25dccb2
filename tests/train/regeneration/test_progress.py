"""Progress is one live line on a terminal, and lines of their own in a file."""

import io

import pytest

from eyas.train.regeneration import progress as shown
from eyas.train.regeneration.progress import Progress
from eyas.train.regeneration.results import Counts


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_one_line_that_is_written_over(monkeypatch):
    monkeypatch.setattr(shown, "LIVE_S", 0)
    stream = Terminal()
    counts = Counts(chats=2, answers=3, tokens=1000)
    progress = Progress(stream, total=10, before=counts)
    progress.show(counts)
    counts.chats, counts.tokens = 10, 123_456
    progress.note("waiting")
    progress.show(counts)
    progress.close()
    first, second, end = stream.getvalue().split("\n")
    assert first.startswith("\r2 of 10 chats, 3 answers") and ", 0 tok/s, " in first
    assert first.split("\r")[2].rstrip() == "waiting" and len(first.split("\r")[2]) == len(first.split("\r")[1])
    assert second.startswith("\r10 of 10 chats") and "123,456 of answers" in second and not end
    assert second.endswith("(2 chats from earlier runs)")


@pytest.mark.parametrize(("every", "num_lines"), [(0, 3), (1000, 0)])
def test_a_file_has_plain_lines_now_and_then(monkeypatch, every, num_lines):
    monkeypatch.setattr(shown, "PLAIN_S", every)
    stream = io.StringIO()
    progress = Progress(stream, total=10, before=Counts())
    for chats in range(3):
        progress.show(Counts(chats=chats))
    progress.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == num_lines and "\r" not in stream.getvalue()
