"""Turns without HTTP: events from another thread, what each delta holds, outcomes, and silence on a stream."""

import asyncio
import itertools
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.gateway import CONTENT, REASONING, reply_ids
from tests.gateway.support.responses import analysis, call, final, preamble, spoken

from eyas.base.errors import Busy, InvalidRequest, Unavailable
from eyas.base.types import FinishReason, ModelInfo, Request, RoundTrace, SamplingParams, TokenEvent, TokenLogprob
from eyas.gateway.http import stream
from eyas.gateway.http.errors import ERROR_FORMAT, EngineFailed
from eyas.gateway.openai.errors import ERRORS
from eyas.gateway.server.context import Context, GatewayOptions
from eyas.gateway.server.mailroom import SLICE, Inbox, Mailroom
from eyas.gateway.server.steps import StepHub
from eyas.gateway.turn.choice import ChoiceReader
from eyas.gateway.turn.delta import Kind, Piece
from eyas.gateway.turn.readers import HarmonyReader, PlainReader
from eyas.gateway.turn.stops import Stops
from eyas.gateway.turn.turn import Turn, deltas_of

EOS = (2, 6)


def request(name="r", **params):
    return Request(request_id=name, prompt_ids=(1, 2, 3), params=SamplingParams(**params))


def event(*ids, name="r", choice=0, **fields):
    return TokenEvent(request_id=name, choice=choice, token_ids=ids, **fields)


class Engine:
    """Only what a turn asks of an engine; the test delivers."""

    info = ModelInfo(name="m", context=100, vocab_size=1000, eos_ids=EOS, drafter="none")
    failure = None

    def __init__(self):
        self.deliver, self.cancelled, self.error = {}, [], None

    def submit(self, request, deliver):
        if self.error:
            raise self.error
        self.deliver[request.request_id] = deliver

    def cancel(self, request_id, choice=None):
        self.cancelled.append((request_id, choice))

    def observe(self, observe):
        pass


@pytest.fixture
def context(codec):
    engine = Engine()
    return Context(engine=engine, codec=codec, options=GatewayOptions(), steps=StepHub(engine))


def run(context, *events, stops=Stops(), **params):  # noqa: B008
    """(deltas, outcome) of a plain turn that gets these events from another thread; an error instead of deltas."""
    outcomes = []
    context.listeners.append(outcomes.append)

    async def main():
        turn = Turn(context, request(**params), lambda: PlainReader(context.codec), route="/x", stops=stops, param="p")
        deliver = context.engine.deliver["r"]
        thread = threading.Thread(target=lambda: [deliver(one) for one in events])
        thread.start()
        try:
            return [delta async for delta in turn.deltas()]
        except Exception as error:
            return error
        finally:
            thread.join()
            turn.close()
            turn.close()

    result = asyncio.run(main())
    assert len(outcomes) == 1
    return result, outcomes[0]


def test_an_outcome_adds_up(context, codec):
    ids = codec.encode("Hello there")
    events = [
        event(ids[0], num_cached=2),
        event(*ids[1:3], round=RoundTrace(draft_ids=(1, 2, 3), num_accepted=1), num_cached=2),
        event(*ids[3:], EOS[0], round=RoundTrace(draft_ids=(1, 2), num_accepted=2), num_cached=2, finish="stop"),
    ]
    deltas, outcome = run(context, *events)
    assert "".join(delta.text(Kind.CONTENT) for delta in deltas) == "Hello there"
    assert sum((delta.token_ids for delta in deltas), ()) == (*ids, EOS[0])
    totals = deltas[-1].totals
    assert (totals.num_rounds, totals.num_drafted, totals.num_accepted) == (2, 5, 3)
    assert totals.accepted_per_position == outcome.accepted_per_position == (2, 1, 0)
    assert (outcome.status, outcome.finishes, outcome.route) == (200, ("stop",), "/x")
    assert (outcome.num_prompt, outcome.num_cached, outcome.num_tokens) == (3, 2, len(ids) + 1)
    assert 0 <= outcome.ttft_s <= outcome.e2e_s


@pytest.mark.parametrize(
    ("finish", "kind", "status"),
    [
        (FinishReason.INVALID, InvalidRequest, 400),
        (FinishReason.ERROR, EngineFailed, 500),
        (FinishReason.CANCELLED, Unavailable, 503),
    ],
)
def test_how_an_engine_ends_a_request(context, finish, kind, status):
    error, outcome = run(context, event(40), event(finish=finish, error="why"))
    assert type(error) is kind and outcome.status == status and outcome.num_tokens == 1
    if kind is InvalidRequest:
        assert (str(error), error.param) == ("why", "p")


def test_a_refused_request_has_an_outcome(context):
    outcomes = []
    context.listeners.append(outcomes.append)
    context.engine.error = Busy("full")

    async def main():
        Turn(context, request(), lambda: PlainReader(context.codec), route="/x")

    with pytest.raises(Busy):
        asyncio.run(main())
    (outcome,) = outcomes
    assert (outcome.status, outcome.error, outcome.ttft_s, outcome.num_tokens) == (429, "full", None, 0)


def test_who_leaves_cancels_and_is_counted(context):
    outcomes = []
    context.listeners.append(outcomes.append)

    async def main():
        Turn(context, request(), lambda: PlainReader(context.codec), route="/x").close()

    asyncio.run(main())
    assert outcomes[0].status == 499 and context.engine.cancelled == [("r", None)]


def test_a_stop_string_cancels_its_choice_only(context, codec):
    deltas, outcome = run(
        context,
        event(*codec.encode("go st")),
        event(*codec.encode("op")),
        event(*codec.encode("after")),
        event(*codec.encode("on"), choice=1, finish="length"),
        stops=Stops(strings=("stop",)),
        n=2,
    )
    assert context.engine.cancelled == [("r", 0)] and outcome.finishes == ("stop", "length")
    texts = ["".join(delta.text(Kind.CONTENT) for delta in deltas if delta.choice == i) for i in range(2)]
    assert texts == ["go ", "on"] and deltas[-2].stop_reason == "stop"


def test_turns_that_share_an_inbox(context, codec):
    async def main():
        inbox = Inbox()
        turns = [
            Turn(context, request(name), lambda: PlainReader(codec), route="/x", inbox=inbox) for name in ("a", "b")
        ]
        for name in ("b", "a", "b"):
            context.engine.deliver[name](event(*codec.encode(name), name=name))
        for name in ("b", "a"):
            context.engine.deliver[name](event(name=name, finish="length"))
        return [(index, delta.text(Kind.CONTENT)) async for index, delta in deltas_of(turns, inbox)]

    assert asyncio.run(main()) == [(1, "b"), (0, "a"), (1, "b"), (1, ""), (0, "")]


def test_the_error_of_one_turn_ends_those_beside_it(context, codec):
    """They are no clients that left; what was finished before stays so."""
    outcomes = []
    context.listeners.append(outcomes.append)

    async def main():
        inbox = Inbox()
        turns = [Turn(context, request(name), lambda: PlainReader(codec), route="/x", inbox=inbox) for name in "abc"]
        context.engine.deliver["a"](event(40, name="a", finish="length"))
        context.engine.deliver["b"](event(name="b", finish=FinishReason.ERROR, error="out of pages"))
        try:
            return [delta async for delta in deltas_of(turns, inbox)]
        finally:
            for turn in turns:
                turn.close()

    with pytest.raises(EngineFailed, match="out of pages"):
        asyncio.run(main())
    assert [outcome.status for outcome in outcomes] == [200, 500, 500]
    assert [outcome.error for outcome in outcomes] == [None, "out of pages", "out of pages"]
    assert ("c", None) in context.engine.cancelled


def test_a_burst_wakes_the_loop_once():
    """All that other threads post before the loop gets to run comes with one call, in order, and a few at a turn."""

    async def main():
        loop, got, calls = asyncio.get_running_loop(), [], []
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: calls.append(1) or wake(*args)
        room = Mailroom()
        delivers = [room.address(lambda one, now, i=i: got.append((i, one.token_ids[0]))) for i in range(64)]
        for burst in range(3):
            thread = threading.Thread(target=lambda burst=burst: [deliver(event(burst)) for deliver in delivers])
            thread.start()
            thread.join()
            while len(got) < 64 * (burst + 1):
                turns.append(len(got))
                await asyncio.sleep(0)
        return got, calls

    turns = []
    got, calls = asyncio.run(main())
    assert max(b - a for a, b in itertools.pairwise(turns)) == SLICE
    assert got == [(i, burst) for burst in range(3) for i in range(64)] and len(calls) == 3


def test_a_loop_that_ended_with_a_call_under_way_holds_up_nobody():
    room = Mailroom()

    async def first():
        room.address(lambda one, now: None)(event(1))  # and the loop ends before it runs the call
        raise RuntimeError

    async def second():
        got = []
        room.address(lambda one, now: got.append(one.token_ids))(event(2))
        await asyncio.sleep(0)
        return got

    with pytest.raises(RuntimeError):
        asyncio.run(first())
    assert asyncio.run(second()) == [(2,)]


def test_nothing_is_lost_between_threads():
    async def main():
        room, got, num = Mailroom(), [], 2000
        done = asyncio.Event()

        def receive(one, now):
            got.append(one.token_ids[0])
            if len(got) == 2 * num:
                done.set()

        delivers = [room.address(receive), room.address(receive)]
        for deliver in delivers:
            threading.Thread(target=lambda deliver=deliver: [deliver(event(i)) for i in range(num)]).start()
        await asyncio.wait_for(done.wait(), 20)
        return got

    assert sorted(asyncio.run(main())) == sorted([*range(2000)] * 2)


MESSAGES = [analysis(REASONING), preamble("Wait, Gr\u00fc\u00dfe."), call('{"a": "\U0001f985"}', "f")]


def read(codec, ids, sizes, *, with_logprobs, stops=(), functions=()):
    """What a choice reads of these ids in rounds of these sizes."""
    params = request(logprobs=1 if with_logprobs else None)
    reader = ChoiceReader(params, 0, HarmonyReader(codec, functions), Stops(strings=stops), EOS)
    deltas, at = [], 0
    for size in [*sizes, len(ids)]:
        part, at = ids[at : at + size], min(at + size, len(ids))
        finish = "stop" if at == len(ids) else None
        scores = tuple(TokenLogprob(logprob=-1.0) for _ in part) if with_logprobs else None
        deltas.append(reader.take(event(*part, finish=finish, logprobs=scores), 0.0))
        if reader.done:
            break
    return [delta for delta in deltas if delta is not None]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 12), max_size=30), data=st.data())
def test_no_chunking_changes_what_is_read(codec, sizes, data):
    """Rounds of any size, read in one go or token by token: the same messages, counts and scored tokens."""
    answer = data.draw(st.sampled_from([MESSAGES, [analysis("a"), analysis("b"), final(CONTENT)], [final(CONTENT)]]))
    ids, stops = spoken(codec, *answer), data.draw(st.sampled_from([(), ("\u00fc", "there! G"), ("nowhere",)]))

    def summary(deltas):
        texts = {}
        for piece in (piece for delta in deltas for piece in delta.pieces):
            head, text = texts.get(piece.message, ((piece.kind, piece.name, piece.channel), ""))
            assert head == (piece.kind, piece.name, piece.channel)
            texts[piece.message] = (head, text + piece.text)
        totals = replace(deltas[-1].totals, prompt_ms=0, predicted_ms=0, num_after_first=0)
        return texts, totals, sum((delta.token_ids for delta in deltas), ())

    whole = read(codec, ids, [], with_logprobs=True, stops=stops, functions={"f"})
    for with_logprobs in (False, True):
        parts = read(codec, ids, sizes, with_logprobs=with_logprobs, stops=stops, functions={"f"})
        assert summary(parts) == summary(whole)
        if with_logprobs:
            scored = [token.token_id for delta in parts for token in delta.scored]
            assert scored == [token.token_id for delta in whole for token in delta.scored]


def test_pieces_of_a_turn(codec):
    deltas = read(codec, spoken(codec, *MESSAGES), [], with_logprobs=False, functions={"f"})
    assert [(piece.message, piece.kind, piece.name, piece.channel) for piece in deltas[-1].pieces] == [
        (0, Kind.REASONING, None, "analysis"),
        (1, Kind.CONTENT, None, "commentary"),
        (2, Kind.CALL, "f", "commentary"),
    ]


def test_only_a_call_without_text_has_a_piece_without_text(codec):
    for arguments, texts in (("{}", ["{}"]), ("", [""])):
        reader, ids = HarmonyReader(codec, {"f"}), spoken(codec, call(arguments, "f"))
        pieces = [piece for token_id in ids for piece in reader.read([token_id])]
        assert ["".join(piece.text for piece in pieces)] == texts and (len(pieces) == 1 or arguments)
        assert [piece.text for piece in pieces if not piece.text] == [text for text in texts if not text]


class TwoAtOnce:
    """A reader that finds two messages in each token."""

    control, kind = frozenset(), Kind.REASONING

    def read(self, ids):
        return [Piece(message=i, kind=Kind.REASONING, text="x") for i in range(2)]

    def finish(self):
        return []


def test_the_first_delta_counts_the_prompt(codec):
    """Whatever the rounds are: it comes with the first text, which may be long before the totals."""
    for sizes in ([], [1] * 50, [4, 7]):
        first, *others = read(codec, reply_ids(codec), sizes, with_logprobs=False)
        assert first.prompt.num_prompt == len(request().prompt_ids) and first.prompt.num_cached == 0
        assert all(delta.prompt is None for delta in others)


def test_a_token_that_two_messages_share_counts_once():
    reader = ChoiceReader(request(logprobs=0), 0, TwoAtOnce(), Stops(), EOS)
    reader.take(event(5, logprobs=(TokenLogprob(logprob=-1.0),)), 0.0)
    assert reader.totals().num_reasoning == 1


def test_an_end_is_no_part_of_the_character_that_it_cuts(codec):
    part = codec.encode("\U0001f985")[:1]
    head = [codec.special["<|channel|>"], *codec.encode("final"), codec.special["<|message|>"]]
    deltas = read(codec, [*head, *part, codec.special["<|return|>"]], [1] * 20, with_logprobs=True)
    assert [token.token_id for delta in deltas for token in delta.scored] == part


def test_choices_that_find_the_prompt_in_the_cache_do_not_hide_that_it_was_read(context):
    _, outcome = run(
        context, event(40, finish="stop", num_cached=0), event(40, choice=1, finish="stop", num_cached=2), n=2
    )
    assert outcome.num_cached == 0 and outcome.num_tokens == 2


class Sent(list):
    async def __call__(self, message):
        self.append(message)

    def body(self):
        return b"".join(message.get("body", b"") for message in self)


async def respond(events, **options):
    sent, closed = Sent(), []

    async def receive():
        await asyncio.Event().wait()

    scope = {"state": {ERROR_FORMAT: ERRORS}}
    await stream.EventStream(events, on_close=lambda: closed.append(1), **options)(scope, receive, sent)
    assert closed == [1]
    return sent


async def items(*parts):
    for part in parts:
        if isinstance(part, float):
            await asyncio.sleep(part)
        elif isinstance(part, Exception):
            raise part
        else:
            yield part


def test_silence_is_filled_with_comments(monkeypatch):
    monkeypatch.setattr(stream, "FIRST_KEEP_ALIVE_S", 0.02)
    monkeypatch.setattr(stream, "KEEP_ALIVE_EVERY_S", 0.02)
    body = asyncio.run(respond(items(0.1, b"data: 1\n\n", 0.1, b"data: 2\n\n"))).body()
    parts = body.split(b"\n\n")
    assert parts[0] == b": waiting" and parts.count(b": waiting") >= 4
    assert [part for part in parts if part.startswith(b"data")] == [b"data: 1", b"data: 2"]
    assert asyncio.run(respond(items(b"data: 1\n\n"))).body() == b"data: 1\n\n"


def test_silence_is_filled_with_what_a_dialect_says(monkeypatch):
    monkeypatch.setattr(stream, "FIRST_KEEP_ALIVE_S", 0.02)
    monkeypatch.setattr(stream, "KEEP_ALIVE_EVERY_S", 0.02)
    body = asyncio.run(respond(items(0.1, b"data: 1\n\n"), keep_alive=b"event: ping\n\n")).body()
    assert body.startswith(b"event: ping\n\n") and body.endswith(b"data: 1\n\n") and b"waiting" not in body


def test_an_error_before_the_headers_is_raised():
    with pytest.raises(EngineFailed):
        asyncio.run(respond(items(EngineFailed("dead"))))


def test_an_error_after_the_headers_is_the_last_event(monkeypatch):
    body = asyncio.run(respond(items(b"data: 1\n\n", EngineFailed("dead")))).body()
    assert body.startswith(b'data: 1\n\ndata: {"error":{"message":"dead"') and b"[DONE]" not in body
    monkeypatch.setattr(stream, "FIRST_KEEP_ALIVE_S", 0.01)
    late = asyncio.run(respond(items(0.1, Unavailable("stopping"))))
    assert late[0]["status"] == 200 and b'"type":"service_unavailable_error"' in late.body()


def test_a_bug_after_the_headers_keeps_its_details(caplog):
    body = asyncio.run(respond(items(b"data: 1\n\n", RuntimeError("secret")))).body()
    assert b"internal error" in body and b"secret" not in body and "secret" in caplog.text


def test_reply_ids_are_what_the_reader_reads(codec):
    (delta,) = read(codec, reply_ids(codec), [], with_logprobs=False)
    assert (delta.text(Kind.REASONING), delta.text(Kind.CONTENT)) == (REASONING, CONTENT)
