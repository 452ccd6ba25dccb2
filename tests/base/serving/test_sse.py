"""Events are split the same for any chunks, and nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.serving.sse import EventSplitter, EventTooLong, data_of

STREAMS = st.lists(
    st.sampled_from([b"data: {}", b"a", b": ping", b"\n", b"\r", b"\r\n", b"\n\n", b"event: x\n", b"\r\n\r\n"]),
    max_size=30,
).map(b"".join)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(stream)) for place in places} | {len(stream)})
    starts = [0, *ends[:-1]]
    return [stream[start:end] for start, end in zip(starts, ends, strict=True)]


def fed(chunks: list[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return events, splitter.rest


@given(STREAMS, st.lists(st.integers(0, 200), max_size=20))
def test_the_same_events_for_any_chunks(stream: bytes, places: list[int]) -> None:
    whole = fed([stream])
    assert fed(cut(stream, places)) == whole
    assert fed([bytes([byte]) for byte in stream]) == whole
    assert b"".join(whole[0]) + whole[1] == stream


@given(
    st.lists(st.sampled_from([b"data: 1", b": c", b"event: x"]), min_size=1, max_size=4),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_each_line_end_ends_an_event(lines: list[bytes], end: str) -> None:
    event = b"".join(line + end.encode() for line in [*lines, b""])
    events, rest = fed([event * 3 + b"x"])
    assert events == [event] * 3
    assert rest == b"x"


def test_an_event_has_a_limit() -> None:
    splitter = EventSplitter(limit=20)
    assert splitter.feed(b"data: 12345678901\n\n") == [b"data: 12345678901\n\n"]
    for chunks in (
        [b"data: 123456789012345\n\n"],
        [b"data: 1234567", b"8901234", b"5\n\n"],
        [b"\n\ndata: 123456789012345\n\n"],
    ):
        splitter = EventSplitter(limit=20)
        with pytest.raises(EventTooLong, match="more than 20 bytes"):
            for chunk in chunks:
                splitter.feed(chunk)


def test_data() -> None:
    assert data_of(b"data: {}\n\n") == b"{}"
    assert data_of(b"data:{}\r\n\r\n") == b"{}"
    assert data_of(b"event: x\nid: 3\ndata: a\ndata:  b\n\n") == b"a\n b"
    assert data_of(b": ping\n\n") is None
    assert data_of(b"\n\n") is None
