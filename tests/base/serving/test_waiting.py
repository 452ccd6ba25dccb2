"""Comments that say why a client waits: written and read back, and everything else that could stand in their place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.serving.waiting import Waiting, waiting_comment, waiting_of

WAITINGS = st.builds(
    Waiting,
    state=st.sampled_from(["queued", "loading", "reading"]),
    position=st.none() | st.integers(1, 10_000),
    eta_s=st.none() | st.floats(0, 1e6),
    backend=st.none() | st.text(),
)


@given(WAITINGS)
def test_is_read_as_it_was_written(waiting):
    comment = waiting_comment(waiting)
    assert comment.startswith(b": eyas {") and comment.endswith(b"}\n\n") and comment.count(b"\n") == 2
    assert waiting_of(comment) == waiting_of(comment.rstrip()) == waiting


def test_unknown_values_are_left_out():
    assert json.loads(waiting_comment(Waiting(state="reading")).removeprefix(b": eyas ")) == {"state": "reading"}


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"data: {}", b": waiting", b": eyas", b": eyas {", b": eyas []", b": eyas 3", b": eyas \xff", b": ping"),
        *(b': eyas {"state": "asleep"}', b': eyas {"position": 3}', b": eyas " + 100_000 * b"["),
    ],
)
def test_other_lines_are_no_such_comment(line):
    assert waiting_of(line) is None
