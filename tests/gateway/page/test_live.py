"""The live view's feed on a real server: origins of tokens, blank mode, limits, and nothing observed for nobody."""

import asyncio
import json
import socket
import threading
from collections import defaultdict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from tests.gateway.support.gateway import CONTENT, REASONING, eventually, reply_ids, running

from eyas.base.harmony.rendering import stop_ids
from eyas.base.types import EngineStats, FinishReason, ModelInfo, PageOwner, RoundTrace, StepReport, TokenEvent
from eyas.engine.ports.stub import StubEngine
from eyas.gateway.app import create_app
from eyas.gateway.page.live import MAX_BEHIND, MAX_VIEWERS, Viewer
from eyas.gateway.page.live_message import MAX_SLOTS, LiveMessageBuilder, short_id
from eyas.gateway.server.context import GatewayOptions

BODY = {"stream": True, "messages": [{"role": "user", "content": "Quixotic"}]}


class Recorder(StubEngine):
    """Keeps what it reports."""

    num_ended = 0  # choices whose last report, which comes behind its events, was made

    def _report(self, events, *numbers):
        super()._report(events, *numbers)
        self.num_ended += sum(event.finish is not None for event in events)

    def observe(self, observe):
        self.is_observed = observe is not None
        super().observe(observe and (lambda report: (self.reports.append(report), observe(report))))


@pytest.fixture
def live_server(codec):
    """`with live_server(live="text", round_s=...) as (url, engine)`."""

    @contextmanager
    def start(*, live="text", round_s=0.002):
        info = ModelInfo(
            name="stub", context=600, vocab_size=codec.vocab_size, eos_ids=stop_ids(codec), drafter="eagle3"
        )
        engine = Recorder(info, lambda request, choice: reply_ids(codec), round_s=round_s)
        engine.reports, engine.is_observed = [], False
        with running(create_app(engine, codec, GatewayOptions(live=live)), engine) as url:
            yield url, engine

    return start


class Watch:
    """One viewer on a plain socket: `messages` grows while it looks; `raw` is all that it was sent."""

    def __init__(self, url: str) -> None:
        self.messages: list[dict] = []
        self.raw = b""
        self.is_ended = False
        host, _, port = url.removeprefix("http://").partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)
        self._socket.sendall(f"GET /live HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        with self._socket, self._socket.makefile("rb") as lines:
            for line in lines:  # a message is one chunk, so that its line is whole
                self.raw += line
                if line.startswith(b"data: "):
                    self.messages.append(json.loads(line.removeprefix(b"data: ")))
            self.is_ended = True

    def steps(self) -> list[dict]:
        return [message for message in self.messages if "step" in message]

    def __enter__(self):
        assert eventually(lambda: len(self.messages) > 0)
        return self

    def __exit__(self, *_) -> None:
        with suppress(OSError):  # ended by the server already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        assert not self._thread.is_alive()


def ask(url, **fields):
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=BODY | fields, timeout=20) as response:
        assert response.status_code == 200, response.read()
        return [line for line in response.iter_lines() if line]


def shown(messages) -> dict:
    """{(id, choice): rounds} over all messages."""
    rounds = defaultdict(list)
    for message in messages:
        for slot in message.get("slots", ()):
            rounds[slot["id"], slot["choice"]] += slot["rounds"]
    return rounds


def test_each_token_has_the_origin_that_the_engine_reported(live_server, codec):
    with live_server() as (url, engine), Watch(url) as watch:
        ask(url, n=3)
        assert eventually(lambda: len([m for m in watch.steps() if any(s["finish"] for s in m["slots"])]) > 0)
        assert eventually(lambda: sum(m["steps"] for m in watch.steps()) == len(engine.reports))
    rounds = shown(watch.messages)
    assert len(rounds) == 3
    events = [event for report in engine.reports for event in report.events]
    for (name, choice), seen in rounds.items():
        own = [event for event in events if event.choice == choice and event.token_ids]
        assert {short_id(event.request_id) for event in own} == {name}
        assert [len(one["accepted"]) for one in seen] == [e.round.num_accepted if e.round else 0 for e in own]
        assert [len(one["accepted"]) + len(one["own"]) for one in seen] == [len(e.token_ids) for e in own]
        assert [len(one["rejected"]) for one in seen] == [
            len(e.round.draft_ids) - e.round.num_accepted if e.round else 0 for e in own
        ]
        text = "".join("".join(one["accepted"] + one["own"]) for one in seen)
        assert text == b"".join(map(codec.token_bytes, reply_ids(codec))).decode()
        assert REASONING in text and CONTENT in text  # characters of several tokens among them


def test_the_numbers_are_those_of_the_reports(live_server):
    with live_server() as (url, engine), Watch(url) as watch:
        ask(url)
        assert eventually(lambda: sum(m["steps"] for m in watch.steps()) == len(engine.reports))
        assert eventually(lambda: watch.messages[-1]["running"] == 0)
    steps = watch.steps()
    assert len(steps) < len(engine.reports)  # several steps share a message
    traces = [event.round for report in engine.reports for event in report.events if event.round]
    assert sum(m["tokens"] for m in steps) == sum(len(e.token_ids) for r in engine.reports for e in r.events)
    assert sum(sum(m["accepted"]) for m in steps) == sum(trace.num_accepted for trace in traces)
    assert sum(sum(m["drafted"]) for m in steps) == sum(len(trace.draft_ids) for trace in traces)
    assert sum(m["rounds"] for m in steps) == len(traces)
    assert steps[0]["slots"][0]["first"] and not any(m["slots"][0]["first"] for m in steps[1:])
    assert steps[-1]["slots"][0]["finish"] == "stop"
    owners = [owner for m in steps for owner in m["pages"]["full"]["owners"]]
    assert owners and {owner[0] for owner in owners} == {steps[0]["slots"][0]["id"]}


def test_blank_mode_sends_lengths_and_no_text(live_server, codec):
    with live_server(live="blank") as (url, _), Watch(url) as watch:
        ask(url)
        assert eventually(lambda: watch.steps() and watch.messages[-1]["running"] == 0)
    tokens = [t for rounds in shown(watch.messages).values() for one in rounds for kind in one.values() for t in kind]
    assert tokens and all(type(token) is int for token in tokens)
    for word in (*REASONING.split(), *CONTENT.split(), "Quixotic", "channel", "message"):
        assert word.encode() not in watch.raw.replace(b'"own"', b""), word


def test_switched_off_there_is_nothing(live_server):
    with live_server(live="off") as (url, engine):
        answer = httpx.get(f"{url}/live")
        assert answer.status_code == 404 and "--live" in answer.json()["error"]["message"]
        assert not engine.is_observed


def test_nobody_is_observed_for_nobody(live_server):
    with live_server() as (url, engine):
        ask(url)
        assert eventually(lambda: engine.num_ended == 1)
        assert not engine.is_observed and engine.reports == []
        with Watch(url):
            with Watch(url):
                assert engine.is_observed
            assert engine.is_observed
        assert eventually(lambda: not engine.is_observed)
        ask(url)
        assert engine.reports == []
        with Watch(url) as again:
            ask(url)
            assert eventually(lambda: bool(again.steps()))


def test_number_of_viewers_is_limited(live_server):
    with live_server() as (url, _), ExitStack() as stack:
        viewers = [stack.enter_context(Watch(url)) for _ in range(MAX_VIEWERS)]
        refused = httpx.get(f"{url}/live")
        assert refused.status_code == 429 and "retry-after" in refused.headers
        viewers[0].__exit__()
        assert eventually(lambda: joins(url))


def test_asking_for_the_head_is_no_viewing(live_server):
    with live_server() as (url, engine):
        with httpx.Client(timeout=20) as client:
            for _ in range(MAX_VIEWERS + 1):
                answer = client.head(f"{url}/live")
                assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        assert not engine.is_observed


def joins(url) -> bool:
    with httpx.stream("GET", f"{url}/live", timeout=20) as response:
        return response.status_code == 200


def test_a_request_that_is_under_way_does_not_look_like_a_new_one(live_server):
    with live_server(round_s=0.03) as (url, engine):
        thread = threading.Thread(target=ask, args=(url,))
        thread.start()
        assert eventually(lambda: engine.stats().num_rounds > 3)
        with Watch(url) as watch:
            thread.join()
            assert eventually(lambda: bool(watch.steps()))
        assert not any(slot["first"] for message in watch.steps() for slot in message["slots"])


def test_an_engine_that_does_not_serve_is_told_and_ends_the_stream(live_server):
    with live_server() as (url, engine), Watch(url) as watch:
        engine.failure = "the engine is restarting"
        assert eventually(lambda: watch.is_ended)
        assert watch.messages[-1]["failure"] == "the engine is restarting"
        with Watch(url) as late:
            assert eventually(lambda: late.is_ended) and late.messages[0]["failure"]
        engine.failure = None
        with Watch(url) as back:
            assert back.messages[0]["failure"] is None and not back.is_ended


def test_a_viewer_that_does_not_keep_up_loses_the_oldest_and_is_told():
    async def look() -> list[bytes]:
        viewer = Viewer()
        for number in range(MAX_BEHIND + 7):
            viewer.put(b"%d" % number)
        viewer.end()
        return [event async for event in viewer.events()]

    events = asyncio.run(look())
    assert events[0] == b'data: {"lost":7}\n\n'
    assert events[1:] == [b"data: %d\n\n" % number for number in range(7, MAX_BEHIND + 7)]


class Bytes:
    """A codec in which each token is one byte."""

    special = {}  # noqa: RUF012

    def encode(self, text):
        return list(text.encode())

    def token_bytes(self, token_id):
        return bytes([token_id])


def report(*events, running=1):
    return StepReport(step=1, ms=1.0, num_drafts=3, events=events, stats=EngineStats(num_running=running))


@given(st.text(max_size=40), st.data())
def test_texts_join_to_the_answer_however_characters_are_split(text, data):
    """Rejected tokens in between, which may be parts of characters too, change nothing."""
    builder, ids, seen, at = LiveMessageBuilder(Bytes(), with_text=True), text.encode(), "", 0
    while at < len(ids):
        count = data.draw(st.integers(1, 4))
        tokens = tuple(ids[at : at + count])
        at += count
        wrong = tuple(data.draw(st.lists(st.integers(0, 255), max_size=3)))
        trace = RoundTrace(draft_ids=tokens[:-1] + wrong, num_accepted=len(tokens) - 1)
        event = TokenEvent(request_id="request", choice=0, token_ids=tokens, round=trace)
        (slot,) = builder.batch(0.0, [report(event)]).slots
        (one,) = slot.rounds
        assert len(one.accepted) == len(tokens) - 1 and len(one.own) == 1 and len(one.rejected) == len(wrong)
        seen += "".join(one.accepted + one.own)
    assert seen == text


def test_more_choices_than_are_shown_still_count():
    builder = LiveMessageBuilder(Bytes(), with_text=True)
    first = [TokenEvent(request_id=f"{i:06}", choice=0, token_ids=(65,)) for i in range(MAX_SLOTS + 9)]
    message = builder.batch(0.0, [report(*first)])
    assert len(message.slots) == MAX_SLOTS and message.tokens == MAX_SLOTS + 9
    last = [TokenEvent(request_id=e.request_id, choice=0, token_ids=(), finish=FinishReason.STOP) for e in first]
    assert len(builder.batch(0.0, [report(*last)]).slots) == MAX_SLOTS
    assert builder.num_followed == 0


def test_what_a_step_takes_without_drafts_is_that_of_the_newest_round():
    trace = RoundTrace(draft_ids=(65,), num_accepted=0)
    event = TokenEvent(request_id="request", choice=0, token_ids=(65,), round=trace)
    rounds = [replace(report(event), undrafted_ms=ms) for ms in (1.0, 2.00049)]
    builder = LiveMessageBuilder(Bytes(), with_text=True)
    assert builder.batch(0.0, [*rounds, report()]).undrafted_ms == 2.0
    assert builder.batch(0.0, [report(event)]).undrafted_ms is UNSET


def test_pages_by_owner():
    stats = EngineStats(
        num_running=2,
        pages_used={"full": 5, "sliding": 2},
        pages_idle={"full": 3},
        pages_total={"full": 9, "sliding": 4},
    )
    owners = (
        PageOwner(request_id="chatcmpl-0123456789", choice=0, num_full=4, num_sliding=2),
        PageOwner(request_id="chatcmpl-0123456789", choice=1, num_full=2, num_sliding=1),
    )
    step = StepReport(step=1, ms=1.0, num_drafts=0, events=(), stats=stats, pages=owners)
    pages = LiveMessageBuilder(Bytes(), with_text=True).batch(0.0, [step]).pages
    assert pages["full"].owners == [("456789", 0, 4), ("456789", 1, 2)]
    assert (pages["full"].total, pages["full"].used, pages["full"].idle) == (9, 5, 3)
    assert pages["sliding"].owners == [("456789", 0, 2), ("456789", 1, 1)] and pages["sliding"].idle == 0
