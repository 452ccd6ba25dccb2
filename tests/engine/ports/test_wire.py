"""Messages between the two processes: each comes out as it went in, and what is none is said to be none."""

import socket
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import InvalidRequest
from eyas.base.settings.config import EngineConfig
from eyas.base.types import (
    EngineStats,
    FinishReason,
    ModelInfo,
    PageOwner,
    Request,
    RoundTrace,
    SamplingParams,
    StepReport,
    TokenEvent,
    TokenLogprob,
)
from eyas.engine.ports import wire

IDS = st.integers(0, 2**31 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
FLOATS = st.floats(allow_nan=False, width=64)
COUNTS = st.integers(0, 2**53)
SIZES = st.dictionaries(TEXT, COUNTS, max_size=3)


def tuples(of, **limits):
    return st.lists(of, max_size=4, **limits).map(tuple)


def built(cls, **fields):
    """Instances of `cls`; fields that are not named keep their defaults or are given."""
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: cls(**given))


PARAMS = built(
    SamplingParams,
    temperature=st.floats(0, 100),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(-1, 2**31 - 1),
    seed=st.none() | st.integers(0, 2**63 - 1),
    n=st.integers(1, 16),
    stop_token_ids=tuples(IDS),
    logprobs=st.none() | st.integers(0, 20),
    logit_bias=st.dictionaries(IDS, st.floats(-100, 100), max_size=3),
    prompt_logprobs=st.none() | st.integers(0, 20),
    allowed_token_ids=st.none() | tuples(IDS, min_size=1),
    bad_words=tuples(tuples(IDS, min_size=1)),
) | built(SamplingParams, max_tokens=st.none() | st.integers(1, 2**31 - 1), grammar=st.none() | TEXT)
LOGPROBS = st.none() | tuples(st.builds(TokenLogprob, logprob=FLOATS, top=tuples(st.tuples(IDS, FLOATS))))
EVENTS = st.builds(
    TokenEvent,
    request_id=TEXT,
    choice=st.integers(0, 15),
    token_ids=tuples(IDS),
    logprobs=LOGPROBS,
    finish=st.none() | st.sampled_from(FinishReason),
    round=st.none() | st.builds(RoundTrace, draft_ids=tuples(IDS), num_accepted=COUNTS),
    num_cached=COUNTS,
    error=st.none() | TEXT,
    prompt_logprobs=LOGPROBS,
)
STATS = built(EngineStats, num_running=COUNTS, num_rounds=COUNTS, pages_used=SIZES, memory_bytes=SIZES)
INFOS = st.builds(
    ModelInfo,
    name=TEXT,
    context=COUNTS,
    vocab_size=COUNTS,
    eos_ids=tuples(IDS),
    drafter=TEXT,
    details=st.dictionaries(TEXT, TEXT, max_size=3),
    simulated=st.booleans(),
)
REPORTS = st.builds(
    StepReport,
    step=COUNTS,
    ms=FLOATS,
    num_drafts=COUNTS,
    events=tuples(EVENTS),
    stats=STATS,
    pages=tuples(st.builds(PageOwner, request_id=TEXT, choice=COUNTS, num_full=COUNTS, num_sliding=COUNTS)),
)
REQUESTS = st.builds(Request, request_id=TEXT, prompt_ids=tuples(IDS), params=PARAMS, cache_salt=TEXT)
CONFIGS = built(EngineConfig, model=TEXT, draft_tokens=st.just("auto") | st.integers(0, 16), seed=st.none() | COUNTS)
TO_ENGINE = (
    st.builds(wire.Start, CONFIGS, st.sampled_from(["text", "json"]))
    | st.builds(wire.Submit, REQUESTS)
    | st.builds(wire.Cancel, TEXT, st.none() | COUNTS)
    | st.just(wire.Stop())
)
FROM_ENGINE = (
    st.builds(wire.Progress, COUNTS, COUNTS)
    | st.builds(wire.Ready, INFOS, TEXT, STATS)
    | st.builds(wire.Failed, TEXT, st.booleans())
    | st.builds(wire.Step, REPORTS)
    | st.builds(wire.Alive, COUNTS)
)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def types_of(value):
    """The types inside a message, which `==` does not tell apart: 1 from 1.0, an enum from its text."""
    if isinstance(value, tuple | list):
        return type(value), [types_of(one) for one in value]
    if isinstance(value, dict):
        return dict, [(types_of(key), types_of(one)) for key, one in value.items()]
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", ())
    return type(value), [types_of(getattr(value, name)) for name in names]


def sent(message, decoder):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(wire.frame(message))
        return wire.Reader(theirs, decoder).receive()


@given(TO_ENGINE)
def test_messages_to_the_engine_come_out_as_they_went_in(message):
    back = sent(message, wire.TO_ENGINE)
    assert back == message and types_of(back) == types_of(message)


@given(FROM_ENGINE)
def test_messages_from_the_engine_come_out_as_they_went_in(message):
    back = sent(message, wire.FROM_ENGINE)
    assert back == message and types_of(back) == types_of(message)


@given(st.lists(st.builds(wire.Cancel, TEXT, st.none() | COUNTS), min_size=1, max_size=5), st.data())
def test_a_stream_may_be_cut_anywhere(messages, data):
    """Pieces of any size give the same messages; a stream that ends within one says so."""
    stream = b"".join(map(wire.frame, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    end = data.draw(st.integers(0, len(stream)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader, seen = wire.Reader(theirs, wire.TO_ENGINE), []
        for start, stop in zip([0, *cuts], [*cuts, end], strict=True):
            ours.sendall(stream[min(start, end) : min(stop, end)])
        ours.close()
        try:
            while (message := reader.receive()) is not None:
                seen.append(message)
            whole = True
        except wire.WireError as error:
            assert "ended within a message" in str(error)
            whole = False
    sizes = [len(wire.frame(message)) for message in messages]
    borders = [sum(sizes[:count]) for count in range(len(sizes) + 1)]
    assert whole == (end in borders)
    assert seen == messages[: sum(border <= end for border in borders) - 1]


def test_a_message_larger_than_the_sockets_buffer(pair):
    ours, theirs = pair
    request = Request(request_id="r", prompt_ids=tuple(range(131_072)))
    thread = threading.Thread(target=ours.sendall, args=(wire.frame(wire.Submit(request)),))
    thread.start()
    assert wire.Reader(theirs, wire.TO_ENGINE).receive() == wire.Submit(request)
    thread.join()


def test_a_length_beyond_the_limit_is_refused_before_anything_is_kept(pair):
    ours, theirs = pair
    ours.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(wire.WireError, match="4294967295 bytes is announced; at most 268435456"):
        wire.Reader(theirs, wire.TO_ENGINE).receive()


def test_a_message_that_is_too_large_is_not_sent(monkeypatch):
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(wire.WireError, match="at most 100 are sent"):
        wire.frame(wire.Cancel("x" * 100))


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", msgspec.msgpack.encode(["Shout", 1]), msgspec.msgpack.encode(["Cancel", 1]), b"\x91\xa1\xff"]
)
def test_what_is_no_message_is_an_error_that_says_why(pair, body):
    ours, theirs = pair
    ours.sendall(len(body).to_bytes(4, "big") + body)
    with pytest.raises(wire.WireError, match=f"a message of {len(body)} bytes cannot be read: "):
        wire.Reader(theirs, wire.TO_ENGINE).receive()


def test_no_number_that_a_request_may_have_is_too_large_to_send():
    with pytest.raises(InvalidRequest, match="max_tokens must be 1 or more, at most 2147483647"):
        SamplingParams(max_tokens=2**70)
    for field in ("top_k", "min_tokens", "seed"):
        with pytest.raises(InvalidRequest, match=field):
            SamplingParams(**{field: 2**70})
