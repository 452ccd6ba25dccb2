"""A step of the trace, found from the end of its file, and who may see it."""

import httpx
import pytest

from eyas.gateway.page import trace_step
from eyas.gateway.page.trace_step import find_step


def lines_of(steps) -> bytes:
    return b"".join(b'{"t":1.5,"step":%d,"ms":2.0,"slots":[]}\n' % step for step in steps)


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_the_last_of_a_step_is_found(tmp_path, monkeypatch, block):
    monkeypatch.setattr(trace_step, "BLOCK", block)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines_of([1, 2, 12]) + b'{"t":9.5,"step":1,"ms":3.0,"slots":[]}\n' + lines_of([3]))
    for step, start in ((1, b'{"t":9.5,'), (2, b'{"t":1.5,'), (3, b'{"t":1.5,'), (12, b'{"t":1.5,')):
        line = find_step(path, step)
        assert line is not None and line.startswith(start) and b'"step":%d,' % step in line and line.endswith(b"}")
    assert find_step(path, 4) is None
    path.write_bytes(b"")
    assert find_step(path, 1) is None


def test_it_is_looked_for_so_far_and_no_further(tmp_path, monkeypatch):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines_of(range(10, 60)))
    monkeypatch.setattr(trace_step, "MAX_BYTES", 200)
    assert find_step(path, 59) is not None and find_step(path, 10) is None


def test_who_may_see_it(site, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines_of([5]))
    for options, status, words in (
        ({"trace": path}, 200, '"step":5'),
        ({}, 404, "--trace FILE"),
        ({"trace": path, "live": "blank"}, 404, "--live text"),
        ({"trace": path, "live": "off"}, 404, "--live text"),
    ):
        answer = httpx.get(f"{site(**options).url}/live/trace/5")
        assert answer.status_code == status and words in answer.text
