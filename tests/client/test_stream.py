"""A stream's pieces, the budgets that its comments say, and streams that are none."""

import asyncio
import json
import socket
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.support.asked import ask, chunk, event, raw_stream, run
from tests.router.support.rawserver import chunked, stream_head

from eyas.base.serving.budgets import Budgets
from eyas.base.serving.waiting import Waiting, waiting_comment
from eyas.client import AsyncClient
from eyas.client.clock import Clock
from eyas.client.errors import Broken, Refused, ServerBusy, TimedOut
from eyas.client.pieces import Call, Content, Reasoning
from eyas.client.server import Server
from eyas.client.stream import Stream

LATE_S = 0.5  # that a budget may be late
BUDGETS = Budgets(queue_s=5, prefill_s=5, stall_s=5)
DONE = b"data: [DONE]\n\n"


def comment(state, **fields):
    return waiting_comment(Waiting(state=state, **fields))


@pytest.mark.parametrize(("comments", "budgets", "span", "seconds", "counts"), [
    (["queued"] * 99, {"queue_s": 0.4, "prefill_s": 0.2}, "queue", 0.4, None),
    (["queued"] * 3 + ["reading"] * 99, {"queue_s": 0.5, "prefill_s": 0.3}, "prefill", 0.3, "budget"),
    (["loading"] * 6 + ["queued"] * 99, {"queue_s": 0.3, "prefill_s": 0.2}, "queue", 0.3, None),
    (["loading"] * 99, {"queue_s": 0.2, "prefill_s": 0.2}, "loading", 0.5, None),
])  # fmt: skip
def test_comments_say_which_budget_runs(comments, budgets, span, seconds, counts):
    async def main():
        parts = [comment(state, position=1 if state == "queued" else None) for state in comments]
        async with raw_stream(*parts, pause_s=0.05, ends=False) as server:
            budgets_ = BUDGETS.with_spans(budgets)
            async with AsyncClient(server.url, model="m", budgets=budgets_, max_tries=3, load_s=0.5) as client:
                began = asyncio.get_running_loop().time()
                times = {}
                with pytest.raises(TimedOut) as caught:
                    async for piece in client.stream("Hi"):
                        if isinstance(piece, Waiting):
                            times.setdefault(piece.state, asyncio.get_running_loop().time())
                now = asyncio.get_running_loop().time()
                assert (caught.value.span, caught.value.seconds, caught.value.kind) == (span, seconds, counts)
                state = {"queue": "queued", "prefill": "reading"}.get(span, span)
                since = began if state == comments[0] else times[state]
                assert seconds - 0.01 <= now - since < seconds + LATE_S
                assert list(times) == list(dict.fromkeys(comments))

    run(main())


def test_a_router_that_falls_silent_while_loading_has_the_budget_of_the_prompt():
    async def main():
        async with raw_stream(comment("loading"), b": x\n\n", *[b":\n\n"] * 40, pause_s=0.1, ends=False) as server:
            budgets = BUDGETS.with_spans({"prefill_s": 0.5})
            async with AsyncClient(server.url, model="m", budgets=budgets) as client:
                got = await ask(client)
                assert (got.error.span, got.error.kind) == ("loading", "budget") and 0.4 < got.seconds < 0.5 + LATE_S

    run(main())


def test_the_time_of_a_slow_reader_is_not_the_servers():
    async def main():
        parts = [chunk(content="a"), chunk(content="b"), chunk("stop"), b"data: [DONE]\n\n"]
        async with (
            raw_stream(*parts, pause_s=0.25) as server,
            AsyncClient(server.url, model="m", budgets=BUDGETS.with_spans({"stall_s": 0.4})) as client,
        ):
            texts = []
            async for piece in client.stream("Hi"):
                if isinstance(piece, Content):
                    texts.append(piece.text)
                    await asyncio.sleep(0.6)
            assert texts == ["a", "b"]

    run(main())


def test_a_busy_loop_does_not_spend_the_servers_time():
    """What came while something else kept the loop past the end of a budget is read before that ends anything."""

    def serve(listening):
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(stream_head() + chunked(chunk(content="a")))
            time.sleep(0.3)
            connection.sendall(chunked(chunk(content="b")))
            time.sleep(0.6)
            connection.sendall(chunked(chunk(content="c")) + chunked(chunk("stop")) + b"0\r\n\r\n")
            connection.recv(1)

    async def main():
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=serve, args=[listening])
            thread.start()
            budgets = BUDGETS.with_spans({"stall_s": 0.4})
            async with AsyncClient(
                f"http://127.0.0.1:{listening.getsockname()[1]}", model="m", budgets=budgets
            ) as client:
                asyncio.get_running_loop().call_later(0.2, time.sleep, 0.5)
                got = await ask(client)
            await asyncio.to_thread(thread.join)
            assert got.error is None and got.text == "abc"

    run(main())


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_slow_reader_gets_what_came_before_the_connection_broke(is_whole, resets):
    async def main():
        parts = [
            chunk(content="a"),
            chunk(content="b"),
            chunk(content="c"),
            *([chunk("stop"), DONE] if is_whole else []),
        ]
        async with (
            raw_stream(*parts, pause_s=0.02, ends=False, resets=resets) as server,
            AsyncClient(server.url, model="m") as client,
        ):
            texts, error = [], None
            try:
                async for piece in client.stream("Hi"):
                    if isinstance(piece, Content):
                        texts.append(piece.text)
                        await asyncio.sleep(0.15)
            except Broken as caught:
                error = caught
            assert texts == ["a", "b", "c"] and (error is None) == is_whole
            assert error is None or (error.text == "abc" and error.kind == "broken")

    run(main())


@pytest.mark.parametrize(("parts", "kind", "counts"), [
    ([b"data: {\"choices\": [{\"index\": 0, \"del"], Broken, "broken"),
    ([b"data: {nonsense}\n\n"], Broken, "malformed"),
    ([b"data: [1, 2]\n\n"], Broken, "malformed"),
    ([b"data: {\"choices\": [{\"delta\": {\"content\": 7}}]}\n\n"], Broken, "malformed"),
    ([b"data: {}\n\n"], Broken, "malformed"),
    ([b"data: " + b"x" * (1 << 20)] + [b"x" * (1 << 20)] * 16, Broken, "malformed"),
    ([event({"error": {"message": "too long", "type": "invalid_request_error"}})], Refused, None),
    ([event({"error": {"message": "full", "code": "queue_full"}})], ServerBusy, None),
    ([event({"error": {"message": "waited 9 s", "code": "queue_timeout"}})], ServerBusy, None),
    ([event({"error": {"message": "stopping", "code": "unavailable"}})], ServerBusy, "status"),
    ([event({"error": "s3cret is wrong"})], Broken, "status"),
    ([event({"error": {"message": "x", "type": "exceed_context_size_error", "code": 400}})], Refused, None),
    ([event({"error": {"message": "x", "type": "InternalServerError", "code": 500}})], Broken, "status"),
    ([event({"error": {"message": "x", "type": "rate", "code": 429}})], ServerBusy, None),
    ([event({"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})], ServerBusy, None),
    ([event({"error": {"message": "x", "type": "unavailable_error", "code": "503"}})], ServerBusy, "status"),
    ([event({"error": {"message": "x", "type": "authentication_error", "code": 401}})], Refused, None),
    ([event({"object": "error", "message": "x", "type": "BadRequestError", "code": 400})], Refused, None),
    ([event({"object": "error", "message": "x", "type": "InternalServerError", "code": 500})], Broken, "status"),
    ([event({"error": {"message": "x", "type": "invalid_request_error"}}).strip()], Refused, None),
    ([event({"error": {"message": "x"}}).strip()], Broken, "status"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("is_late", [False, True])
def test_streams_that_are_none(parts, kind, counts, is_late):
    async def main():
        first = [chunk(content="a")] if is_late else [chunk(role="assistant", content="")]
        async with (
            raw_stream(*first, *parts) as server,
            AsyncClient(server.url, api_key="s3cret", model="m", max_tries=1, load_s=1.0) as client,
        ):
            got = await ask(client)
            assert type(got.error) is kind and got.error.kind == counts
            assert got.error.text == ("a" if is_late else "") and "s3cret" not in str(got.error)

    run(main())


def test_a_byte_order_mark_hides_no_event():
    async def main():
        parts = [b"\xef\xbb\xbf" + chunk(content="a"), chunk("stop"), DONE]
        async with raw_stream(*parts) as server, AsyncClient(server.url, model="m") as client:
            assert (await ask(client)).text == "a"

    run(main())


def test_reasoning_content_calls_and_usage():
    async def main():
        def call(index=0, id=None, name=None, arguments=None):
            function = {"name": name, "arguments": arguments}
            return {"index": index, "id": id, "function": function}

        parts = [
            chunk(role="assistant", content=""), chunk(reasoning="r1 "), chunk(thinking="r2 "),
            chunk(reasoning_content="r3", reasoning="r3"), chunk(content="c"), chunk(refusal="!"),
            chunk(tool_calls=[call(0, "a", "f", "")]), chunk(tool_calls=[call(0, arguments='{"x":')]),
            chunk(tool_calls=[call(1, "b", "g", "{}")]), chunk(tool_calls=[call(0, arguments=" 1}")]),
            chunk("tool_calls"), event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9,
            "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 2}}}), b"data: [DONE]\n\n",
        ]  # fmt: skip
        async with raw_stream(*parts) as server, AsyncClient(server.url, model="m") as client:
            got = await ask(client)
            said = [piece for piece in got.pieces if isinstance(piece, Reasoning | Content | Call)]
            assert said == [Reasoning("r1 "), Reasoning("r2 "), Reasoning("r3"), Content("c"), Content("!"),
                            Call("a", "f", '{"x": 1}'), Call("b", "g", "{}")]  # fmt: skip
            usage = got.end.usage
            assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (3, 9, 2)
            assert usage.reasoning_tokens is None and got.end.finish_reason == "tool_calls"
        async with raw_stream(*parts) as server, AsyncClient(server.url, model="m") as client:
            answer = await client.complete("Hi")
            assert (answer.content, answer.reasoning, len(answer.calls)) == ("c!", "r1 r2 r3", 2)
            assert 0 <= answer.timings.first_token_s <= answer.timings.total_s

    run(main())


def test_fragments_of_a_call_are_progress():
    async def main():
        fragments = [chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "1"}}])] * 8
        async with (
            raw_stream(*fragments, chunk("stop"), pause_s=0.1) as server,
            AsyncClient(server.url, model="m", budgets=BUDGETS.with_spans({"stall_s": 0.4})) as client,
        ):
            got = await ask(client)
            assert got.pieces[-2] == Call("a", "f", "1" * 8) and got.seconds > 0.8
        async with raw_stream(*fragments[:2], ends=False) as server, AsyncClient(server.url, model="m") as client:
            got = await ask(client)
            assert type(got.error) is Broken and got.error.calls == (Call("a", "f", "11"),) and len(server.heads) == 1

    run(main())


@pytest.mark.parametrize("how", ["silent", "cut", "reset"])
def test_an_answer_with_its_finish_reason_is_whole(how):
    async def main():
        parts = [chunk(content="a"), chunk("length"), *([b": x\n\n"] * 20 if how == "silent" else [])]
        options = {"pause_s": 0.1} if how == "silent" else {"resets": how == "reset"}
        async with (
            raw_stream(*parts, ends=False, **options) as server,
            AsyncClient(server.url, model="m", budgets=BUDGETS.with_spans({"stall_s": 0.4})) as client,
        ):
            got = await ask(client)
            assert got.text == "a" and got.end.finish_reason == "length" and got.end.usage is None
            assert got.seconds < 1.0 + LATE_S

    run(main())


class Fed:
    """An answer whose body comes in the cuts that a test makes."""

    def __init__(self, parts):
        self.content_type, self.headers, self.content = "text/event-stream", {}, self
        self._parts = iter(parts)

    async def readany(self):
        return next(self._parts, b"")

    def close(self):
        pass


TEXTS = st.text(max_size=20)
LASTS = st.sampled_from([b"data: [DONE]\n\n", b"data: [DONE]", b""])
EVENTS = st.lists(
    st.one_of(
        st.builds(lambda text: chunk(content=text), TEXTS),
        st.builds(lambda text: chunk(reasoning_content=text), TEXTS),
        st.builds(lambda text: chunk(content=text).replace(b"\n", b"\r\n"), TEXTS),
        st.builds(lambda text: chunk(content=text).replace(b"data: {", b'data: {"id": 1,\ndata: '), TEXTS),
        st.builds(lambda n: chunk(tool_calls=[{"index": n, "function": {"arguments": "[]"}}]), st.integers(0, 2)),
        st.builds(lambda n: waiting_comment(Waiting(state="queued", position=n)), st.integers(1, 9)),
        st.sampled_from([b": ping\n\n", b":\n\n", b"event: x\nid: 7\n\n", b"\n"]),
    ),
    max_size=8,
)


@given(EVENTS, st.lists(st.integers(0, 2000), max_size=30), LASTS)
def test_the_same_pieces_for_any_cuts(events, places, last):
    body = b"".join([*events, chunk("stop"), last])

    async def pieces_of(parts):
        loop = asyncio.get_running_loop()
        server = Server("http://h", key=None, name=None, breaker=None)
        stream, pieces = Stream(server, Fed(parts), Clock(BUDGETS, loop.time(), began=loop.time())), []
        while not stream.is_complete:
            pieces += await stream.batch()
        stream.close()
        return pieces

    async def main():
        whole = await pieces_of([body])
        ends = sorted({min(place, len(body)) for place in places} | {0, len(body)})
        cuts = [body[a:b] for a, b in pairwise(ends)]
        assert await pieces_of(cuts) == await pieces_of(bytes([byte]) for byte in body) == whole
        said = "".join(piece.text for piece in whole if isinstance(piece, Content))
        assert said == "".join(text_of(event) for event in events)

    def text_of(event):
        lines = [line[6:] for line in event.splitlines() if line.startswith(b"data: ")]
        return (json.loads(b"\n".join(lines))["choices"][0]["delta"].get("content") or "") if lines else ""

    run(main())


def call(index=None, id=None, name=None, arguments=None):
    function = {"name": name, "arguments": arguments}
    fields = {"index": index, "id": id, "function": {key: one for key, one in function.items() if one is not None}}
    return chunk(tool_calls=[{key: one for key, one in fields.items() if one is not None}])


@pytest.mark.parametrize(("parts", "calls"), [
    ([call(0, "a", "f", "{}"), DONE], [Call("a", "f", "{}")]),
    ([chunk("", content="x"), call(0, "a", "f", "{}"), chunk("tool_calls"), DONE], [Call("a", "f", "{}")]),
    ([chunk("stop"), call(0, "a", "f", "{}"), DONE], [Call("a", "f", "{}")]),
    ([call(0, "a", "f", "{}"), chunk("tool_calls"), call(1, "b", "g", "{}")],
     [Call("a", "f", "{}"), Call("b", "g", "{}")]),
    ([call(0, "a", "f", {"x": [1]}), chunk("tool_calls")], [Call("a", "f", '{"x":[1]}')]),
    ([call(None, "a", "f", "1"), call(None, "b", "g", "2"), call(None, "a", None, "3"), chunk("stop")],
     [Call("a", "f", "13"), Call("b", "g", "2")]),
    ([call(0, "a", "f", "1"), call(0, "a", "f", "2"), call(None, None, None, "3"), chunk("stop")],
     [Call("a", "f", "123")]),
    ([call(0, "a", "f", "1"), call(0, "b", "g", "2"), call(0, None, None, "3"), chunk("stop")],
     [Call("a", "f", "1"), Call("b", "g", "23")]),
    ([call(0, "x", "f", "1"), call(1, "x", "g", "2"), chunk("stop")], [Call("x", "f", "1"), Call("x", "g", "2")]),
    ([call(0, "", "f", "{}"), call(0, "", "g", "{}"), chunk("stop")], [Call("", "f", "{}"), Call("", "g", "{}")]),
    ([call(None, None, "f", "{}"), call(None, None, "g", "{}"), chunk("stop")],
     [Call("", "f", "{}"), Call("", "g", "{}")]),
    ([call(0, "a"), call(0, None, "f"), call(0, None, None, "{}"), chunk("stop")], [Call("a", "f", "{}")]),
])  # fmt: skip
def test_calls_of_odd_shapes(parts, calls):
    async def main():
        async with raw_stream(*parts) as server, AsyncClient(server.url, model="m") as client:
            got = await ask(client)
            assert got.error is None and [piece for piece in got.pieces if isinstance(piece, Call)] == calls

    run(main())


@pytest.mark.parametrize(("usage", "counts"), [
    ({"prompt_tokens": 3, "completion_tokens": None, "total_tokens": 3.0}, (3, 0, 3)),
    ({"prompt_tokens": 3, "completion_tokens": "2"}, (3, 0, 3)),
    ({"prompt_tokens": 3, "completion_tokens": 2, "prompt_tokens_details": []}, (3, 2, 5)),
    ([], None),
])  # fmt: skip
def test_an_answer_does_not_fail_by_its_usage(usage, counts):
    async def main():
        choice = {"index": None, "delta": {"content": "a"}, "finish_reason": "stop"}
        parts = [event({"choices": [choice]}), event({"choices": [], "usage": usage}), DONE]
        async with raw_stream(*parts) as server, AsyncClient(server.url, model="m") as client:
            got = await ask(client)
            assert got.error is None and got.text == "a"
            used = got.end.usage
            assert (used and (used.prompt_tokens, used.completion_tokens, used.total_tokens)) == counts

    run(main())
