"""What others wrote, made fit for a terminal."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.fleet.commands.terminal import plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mERROR\x1b[0m: caf\u00e9\t1\n", "ERROR: caf\u00e9\t1\n"),
        ("a\x1b]0;title\x07b\x1b]52;c;AAAA\x1b\\c", "abc"),
        ("\x1b(B\x1b[?25l\x1b[2Jx\x1bc\x9b5n", "x?5n"),
        ("50%\r100%\udcff\x1b", "50%?100%??"),
    ],
)
def test_sequences_go(text, shown):
    assert plain(text) == shown


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text):
    assert not any((ord(char) < 32 and char not in "\t\n") or 0x7F <= ord(char) < 0xA0 for char in plain(text))
