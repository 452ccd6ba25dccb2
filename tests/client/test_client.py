"""The client against a scripted server: every error in its place, each budget in time, nothing asked again too late."""

import asyncio
import json

import pytest
from tests.client.support.asked import ask, event, raw_stream, run
from tests.router.support.script import Script
from tests.router.support.scripted import ScriptedBackend, free_port

from eyas.base.errors import UserError
from eyas.base.serving.breaker import Breaker
from eyas.base.serving.budgets import Budgets
from eyas.base.serving.waiting import Waiting, waiting_comment
from eyas.client import AsyncClient
from eyas.client.errors import Broken, CircuitOpen, ClientError, Refused, ServerBusy, Stalled, TimedOut
from eyas.client.pieces import Asked, Content

LATE_S = 0.5  # that a budget may be late
BUDGETS = Budgets(queue_s=5, prefill_s=5, stall_s=5)
MARK = {"mark": "m1"}
WHOLE = "[m1 1/4][m1 2/4][m1 3/4][m1 4/4]"
# What the server does before the first piece: the error, and how it counts for the breaker.
BEFORE = [
    ({"status": 500}, Refused, "status"),
    ({"status": 503}, Refused, "status"),
    ({"status": 503, "retry_after": "9"}, ServerBusy, "status"),
    ({"status": 503, "error": "Loading model"}, ServerBusy, None),
    ({"status": 429}, ServerBusy, None),
    ({"status": 429, "retry_after": "9"}, ServerBusy, None),
    ({"status": 400, "error": "no such field"}, Refused, None),
    ({"status": 401}, Refused, None),
    ({"status": 307, "location": "http://127.0.0.1:1/"}, Broken, "malformed"),
    ({"html": True}, Broken, "malformed"),
    ({"body": "[1]"}, Broken, "malformed"),
    ({"end": "rst"}, Broken, "broken"),
    ({"end": "cut"}, Broken, "broken"),
    ({"end": "rst", "after": 0}, Broken, "broken"),
    ({"end": "cut", "after": 0}, Broken, "broken"),
    ({"end": "short", "after": 0}, Broken, "broken"),
    ({"end": "error", "after": 0}, Broken, "status"),
]
AFTER = [("rst", "broken"), ("cut", "broken"), ("short", "broken"), ("error", "status")]


def client_of(backend, **options):
    options = {"budgets": BUDGETS, "model": "scripted", "max_tries": 1} | options
    return AsyncClient(backend.url, **options)


@pytest.mark.parametrize(("script", "kind", "counts"), BEFORE, ids=lambda value: str(value)[:40])
def test_each_error_before_the_first_piece(script, kind, counts):
    async def main():
        async with ScriptedBackend().serving() as backend, client_of(backend, load_s=1.0) as client:
            got = await ask(client, MARK | script)
            assert type(got.error) is kind and got.error.kind == counts
            assert got.error.endpoint == client.name and str(got.error).startswith(client.name)
            assert not got.error.text and len(backend.asked) == 1 and client.breaker.failures == (counts is not None)
            if kind is ServerBusy:
                assert got.error.retry_after_s == {"9": 9.0}.get(script.get("retry_after"), got.error.retry_after_s)
            if kind is Refused:
                assert got.error.status == script["status"]
                assert got.error.message == script.get("error", "the script says so")
            assert (await ask(client, MARK)).text == WHOLE and client.breaker.failures == 0

    run(main())


@pytest.mark.parametrize(("end", "counts"), AFTER)
def test_each_error_after_the_first_piece_has_what_had_come_and_is_not_asked_again(end, counts):
    async def main():
        async with (
            ScriptedBackend("a").serving() as first,
            ScriptedBackend("b").serving() as second,
            client_of(first, max_tries=3, fallbacks=[client_of(second)]) as client,
        ):
            got = await ask(client, MARK | {"end": end, "after": 2, "thoughts": 1})
            assert type(got.error) is Broken and got.error.kind == counts
            assert got.error.text == got.text == "[m1 1/4][m1 2/4]"
            assert got.error.reasoning == "(m1 thought 1)"
            assert len(first.asked) == 1 and not second.asked

    run(main())


@pytest.mark.parametrize(("script", "budgets", "kind", "span", "counts"), [
    ({"before_s": 9}, {"prefill_s": 0.4}, TimedOut, "prefill", "budget"),
    ({"first_s": 9}, {"prefill_s": 0.4}, TimedOut, "prefill", "budget"),
    ({"first_s": 9, "noise_s": 0.05}, {"prefill_s": 0.4}, TimedOut, "prefill", "budget"),
    ({"end": "hang", "after": 2}, {"stall_s": 0.4}, Stalled, "stall", "budget"),
    ({"between_s": 9, "noise_s": 0.05}, {"stall_s": 0.4}, Stalled, "stall", "budget"),
    ({"between_s": 0.1, "pieces": 99}, {"total_s": 0.7}, TimedOut, "total", "budget"),
    ({"before_s": 9}, {"total_s": 0.4}, TimedOut, "total", "budget"),
])  # fmt: skip
def test_each_budget_is_held(script, budgets, kind, span, counts):
    async def main():
        async with (
            ScriptedBackend().serving() as backend,
            client_of(backend, budgets=BUDGETS.with_spans(budgets), max_tries=3) as client,
        ):
            got = await ask(client, MARK | script)
            (seconds,) = budgets.values()
            assert type(got.error) is kind and isinstance(got.error, TimeoutError)
            assert (got.error.span, got.error.seconds, got.error.kind) == (span, seconds, counts)
            assert seconds <= got.seconds + 1e-3 and got.seconds < seconds + LATE_S
            assert got.error.text == got.text and len(backend.asked) == 1
            while backend.num_running():
                await asyncio.sleep(0.01)

    run(main())


def test_it_tries_again_and_says_so():
    async def main():
        async with ScriptedBackend().serving() as backend, client_of(backend, max_tries=3) as client:
            backend.script = Script(status=429, retry_after="1")

            async def mend():
                while not backend.asked:
                    await asyncio.sleep(0.01)
                backend.script = Script(mark="m1")

            mending = asyncio.create_task(mend())
            got = await ask(client)
            await mending
            assert got.text == WHOLE and got.waits[0] == Waiting(state="queued", eta_s=1.0)
            assert got.endpoints == [client.name] and 1.0 <= got.seconds < 1.5 and client.breaker.failures == 0

    run(main())


def test_a_server_that_loads_its_model_is_waited_for():
    async def main():
        script = Script(status=503, error="Loading model", retry_after="0.2")
        async with ScriptedBackend(script=script).serving() as backend:
            budgets = BUDGETS.with_spans({"queue_s": 0.1})
            async with client_of(backend, max_tries=1, budgets=budgets, load_s=2.0) as client:
                got = await ask(client)
                assert type(got.error) is ServerBusy and len(backend.asked) >= 7 and 1.5 < got.seconds < 2.5
                assert {one.state for one in got.waits} == {"loading"} and client.breaker.failures == 0
                asking = asyncio.create_task(ask(client))
                await asyncio.sleep(0.5)
                backend.script = Script(mark="m1")
                assert (await asking).text == WHOLE

    run(main())


@pytest.mark.parametrize(("retry_after", "budgets"), [("3", {"queue_s": 2.0}), ("3", {"total_s": 2.0})])
def test_a_pause_that_no_budget_has_room_for_is_not_begun(retry_after, budgets):
    async def main():
        async with (
            ScriptedBackend(script=Script(status=429, retry_after=retry_after)).serving() as backend,
            client_of(backend, max_tries=3, budgets=BUDGETS.with_spans(budgets)) as client,
        ):
            got = await ask(client)
            assert type(got.error) is ServerBusy and got.error.retry_after_s == 3.0
            assert got.seconds < LATE_S and len(backend.asked) == 1

    run(main())


def test_pauses_are_of_the_queues_budget():
    async def main():
        async with (
            ScriptedBackend(script=Script(status=429, retry_after="0.4")).serving() as backend,
            client_of(backend, max_tries=99, budgets=BUDGETS.with_spans({"queue_s": 1.0})) as client,
        ):
            got = await ask(client)
            assert type(got.error) is ServerBusy and len(backend.asked) == 3 and got.seconds < 1.0 + LATE_S

    run(main())


def test_a_slow_reader_spends_the_pause_and_not_the_prompts_budget():
    async def main():
        async with (
            ScriptedBackend(script=Script(status=429, retry_after="0.4")).serving() as backend,
            client_of(backend, max_tries=2, budgets=BUDGETS.with_spans({"prefill_s": 0.5})) as client,
        ):
            began, seconds = asyncio.get_running_loop().time(), []
            async for piece in client.stream(json.dumps(MARK)):
                if isinstance(piece, Asked | Waiting):
                    await asyncio.sleep(0.6)
                    backend.script = Script(mark="m1") if isinstance(piece, Waiting) else backend.script
                    seconds.append(asyncio.get_running_loop().time() - began)
            took = asyncio.get_running_loop().time() - began
            assert len(seconds) == 2 and took < 1.2 + 0.3 and len(backend.asked) == 2

    run(main())


def test_a_pause_has_what_the_queue_has_left():
    """The router's queue took most of its budget; then it says inside the stream that it is full."""

    async def main():
        said = event({"error": {"message": "x", "code": "queue_full"}})
        parts = [waiting_comment(Waiting(state="queued")), *[b": x\n\n"] * 7, said]
        async with raw_stream(*parts, pause_s=0.1) as server:
            budgets = BUDGETS.with_spans({"queue_s": 1.0})
            async with AsyncClient(server.url, model="m", budgets=budgets) as client:
                got = await ask(client)
                assert type(got.error) is ServerBusy and got.seconds < 1.0 + 0.2 and len(server.heads) == 1

    run(main())


def test_fallbacks_in_order_and_their_reasons():
    async def main():
        async with ScriptedBackend("a").serving() as first, ScriptedBackend("b").serving() as second:
            nowhere = AsyncClient(f"http://127.0.0.1:{free_port()}", model="x", max_tries=1, name="nowhere")
            last = client_of(second, name="last")
            async with client_of(first, api_key="key", fallbacks=[nowhere, last], name="first") as client:
                got = await ask(client, MARK | {"on": {"a": {"status": 500}}}, model="mine")
                asked = [piece for piece in got.pieces if isinstance(piece, Asked)]
                assert [(one.endpoint, one.model, one.is_fallback) for one in asked] == [
                    ("first", "mine", False), ("nowhere", "x", True), ("last", "scripted", True)]  # fmt: skip
                assert [type(one.reason) for one in asked] == [type(None), Refused, Broken]
                assert got.text == WHOLE and got.end.endpoint == "last"
                assert (first.asked[0].header("authorization"), second.asked[0].header("authorization")) == (
                    "Bearer key", None)  # fmt: skip
                got = await ask(client, {"status": 500})
                assert got.error.endpoint == "last" and [one.endpoint for one in got.error.before] == [
                    "first",
                    "nowhere",
                ]

    run(main())


def test_a_mistake_of_the_request_goes_to_no_fallback():
    async def main():
        async with (
            ScriptedBackend("a").serving() as first,
            ScriptedBackend("b").serving() as second,
            client_of(first, max_tries=3, fallbacks=[client_of(second)]) as client,
        ):
            got = await ask(client, {"status": 422})
            assert type(got.error) is Refused and len(first.asked) == 1 and not second.asked

    run(main())


def test_the_total_is_one_over_all_endpoints():
    async def main():
        async with ScriptedBackend("a").serving() as first, ScriptedBackend("b").serving() as second:
            budgets = BUDGETS.with_spans({"total_s": 0.8, "prefill_s": 0.5})
            async with client_of(first, budgets=budgets, fallbacks=[client_of(second, budgets=budgets)]) as client:
                got = await ask(client, {"before_s": 9})
                assert got.error.span == "total" and got.error.kind is None  # the fallback had less than half of it
                assert got.seconds + 1e-3 >= 0.8 and got.seconds < 0.8 + LATE_S
                assert [error.span for error in got.error.before] == ["prefill"]

    run(main())


@pytest.mark.parametrize("is_address", [False, True])
def test_the_total_of_the_call_is_that_of_its_fallbacks(is_address):
    async def main():
        async with ScriptedBackend("a").serving() as first, ScriptedBackend("b").serving() as second:
            budgets = BUDGETS.with_spans({"total_s": 0.5})
            fallback = second.url if is_address else client_of(second, budgets=Budgets(total_s=9))
            async with client_of(first, budgets=budgets, fallbacks=[fallback]) as client:
                got = await ask(client, {"on": {"a": {"status": 500}, "b": {"before_s": 3}}})
                assert (got.error.span, got.error.seconds) == ("total", 0.5) and len(second.asked) == 1
                assert got.seconds + 1e-3 >= 0.5 and got.seconds < 0.5 + LATE_S

    run(main())


def test_an_address_has_the_budgets_and_tries_of_its_client():
    async def main():
        async with ScriptedBackend("a").serving() as first, ScriptedBackend("b").serving() as second:
            budgets = BUDGETS.with_spans({"prefill_s": 0.3})
            async with client_of(first, budgets=budgets, fallbacks=[second.url]) as client:
                got = await ask(client, {"on": {"a": {"status": 500}, "b": {"before_s": 3}}})
                assert got.error.span == "prefill" and got.seconds < 0.3 + LATE_S
                got = await ask(client, {"status": 500})
                assert len(second.asked) == 2  # one of each call

    run(main())


def test_fallbacks_of_a_fallback_come_after_it():
    async def main():
        async with ScriptedBackend("c").serving() as third, AsyncClient(third.url, model="m", name="c") as last:
            second = AsyncClient(f"http://127.0.0.1:{free_port()}", max_tries=1, name="b", fallbacks=[last])
            nowhere = f"http://127.0.0.1:{free_port()}"
            async with AsyncClient(nowhere, max_tries=1, name="a", fallbacks=[second, last]) as client:
                got = await ask(client, MARK)
                assert got.endpoints == ["a", "b", "c"] and got.text == WHOLE
            assert (await ask(last, MARK)).text == WHOLE  # it is entered itself, and still open
            assert last._num_entered == 1

    run(main())


@pytest.mark.parametrize(("budgets", "is_spent"), [({"queue_s": None}, False), ({"queue_s": 0.2}, True)])
def test_a_whole_answer_has_queue_and_prefill_together(budgets, is_spent):
    async def main():
        async with ScriptedBackend(script=Script(before_s=0.8)).serving() as backend:
            spans = {"prefill_s": 0.2} | budgets
            async with client_of(backend, budgets=BUDGETS.with_spans(spans)) as client:
                asking = asyncio.gather(client.embed(["a"]), return_exceptions=True)
                (got,) = await asking
                assert isinstance(got, TimedOut) if is_spent else got == [[0.25, -0.5]]

    run(main())


def test_the_breaker_opens_and_lets_one_probe_in():
    async def main():
        async with (
            ScriptedBackend(script=Script(status=500)).serving() as backend,
            client_of(backend, breaker=Breaker(max_failures=5, open_s=0.6)) as client,
        ):
            for _ in range(5):
                assert type((await ask(client)).error) is Refused
            got = await ask(client)
            assert type(got.error) is CircuitOpen and 0.4 < got.error.retry_in_s <= 0.6 and not got.endpoints
            assert len(backend.asked) == 5
            await asyncio.sleep(got.error.retry_in_s + 0.01)
            backend.script = Script(mark="m1", before_s=0.2)
            probe = asyncio.create_task(ask(client))
            await asyncio.sleep(0.05)
            assert type((await ask(client)).error) is CircuitOpen
            assert (await probe).text == WHOLE and len(backend.asked) == 6
            assert (await ask(client)).text == WHOLE and client.breaker.state == "closed"

    run(main())


def test_a_probe_that_is_left_lets_the_next_one_in():
    async def main():
        async with (
            ScriptedBackend(script=Script(status=500)).serving() as backend,
            client_of(backend, breaker=Breaker(max_failures=1, open_s=0.05)) as client,
        ):
            await ask(client)
            await asyncio.sleep(0.06)
            backend.script = Script(mark="m1", before_s=9)
            probe = asyncio.create_task(ask(client))
            await asyncio.sleep(0.05)
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)
            backend.script = Script(mark="m1")
            assert (await ask(client)).text == WHOLE

    run(main())


@pytest.mark.parametrize("how", ["break", "cancel", "aclose", "raise", "before"])
def test_leaving_closes_the_connection_at_once(how):
    async def main():
        async with ScriptedBackend(script=Script(mark="m1", pieces=999, between_s=0.02)).serving() as backend:
            if how == "before":
                backend.script = Script(before_s=9)
            async with client_of(backend) as client:
                seen = asyncio.Event()

                async def read():
                    if how == "aclose":
                        pieces = client.stream("Hi")
                        while not isinstance(await anext(pieces), Content):
                            pass
                        seen.set()
                        await pieces.aclose()
                        return
                    async for piece in client.stream("Hi"):
                        if isinstance(piece, Content):
                            seen.set()
                            if how == "break":
                                break
                            if how == "raise":
                                raise ZeroDivisionError

                task = asyncio.create_task(read())
                if how == "before":
                    while not backend.asked:
                        await asyncio.sleep(0.01)
                else:
                    await seen.wait()
                if how in ("cancel", "before"):
                    task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                left_at = asyncio.get_running_loop().time()
                while backend.num_running():
                    await asyncio.sleep(0.002)
                assert asyncio.get_running_loop().time() - left_at < 0.2
                assert client.breaker.failures == 0

    run(main())


def test_the_call_of_the_seed():
    async def main():
        async with ScriptedBackend().serving() as backend, AsyncClient(f"{backend.url}/v1") as client:
            texts = [text async for text in client.generate_stream('{"mark": "m1", "thoughts": 2}', timeout=120.0)]
            assert "".join(texts) == WHOLE and len(texts) == 4
            body = json.loads(backend.asked[0].body)
            assert (body["model"], body["max_tokens"]) == ("scripted", 2048) and backend.num_models_asked == 1
            with pytest.raises(asyncio.TimeoutError):
                async for _ in client.generate_stream('{"before_s": 9}', timeout=0.3):
                    pass

    run(main())


def test_vectors_and_names():
    async def main():
        async with ScriptedBackend().serving() as backend, client_of(backend, model=None) as client:
            assert await client.models() == ("scripted",)
            assert await client.embed(["a", "b"]) == [[0.25, -0.5]] * 2
            backend.script = Script(status=500)
            with pytest.raises(Refused):
                await client.embed(["a"])
            backend.models_hang = True
            client._budgets = BUDGETS.with_spans({"queue_s": 0.1, "prefill_s": 0.2})
            with pytest.raises(TimedOut):
                await client.models()
            backend.models_hang = False
            with pytest.raises(UserError):
                await client.embed("a")

    run(main())


def test_fields_are_sent_as_they_are():
    async def main():
        async with ScriptedBackend(script=Script(mark="m1")).serving() as backend, client_of(backend) as client:
            messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
            await ask_messages(client, messages, temperature=0, reasoning_effort="high", seed=None, top_k=3)
            body = json.loads(backend.asked[0].body)
            assert body == {"model": "scripted", "messages": messages, "max_tokens": 2048, "temperature": 0,
                            "reasoning_effort": "high", "top_k": 3, "stream": True,
                            "stream_options": {"include_usage": True}}  # fmt: skip
            for fields in ({"n": 2}, {"stream": False}, {"stream_options": {}}):
                with pytest.raises(UserError):
                    await client.complete("Hi", **fields)

    async def ask_messages(client, messages, **fields):
        return [piece async for piece in client.stream(messages, **fields)]

    run(main())


def test_a_request_that_json_cannot_hold():
    async def main():
        async with (
            ScriptedBackend(script=Script(status=500)).serving() as backend,
            client_of(backend, breaker=Breaker(max_failures=1, open_s=0.05)) as client,
        ):
            await ask(client)
            await asyncio.sleep(0.06)
            for text, fields in (("\ud800", {}), ("Hi", {"tools": object()})):
                with pytest.raises(UserError, match="JSON"):
                    await client.complete(text, **fields)
            with pytest.raises(UserError, match="JSON"):
                await client.embed(["\ud800"])
            backend.script = Script(mark="m1")
            assert len(backend.asked) == 1 and (await ask(client)).text == WHOLE  # the probe's place is free

    run(main())


def test_all_errors_have_one_base_and_say_what_to_do():
    errors = [
        CircuitOpen(3.2, failures=5, endpoint="e"), TimedOut("queue", 120, endpoint="e"), Stalled(120.0, endpoint="e"),
        ServerBusy("full", None, endpoint="e"), Refused(404, "no such model", endpoint="e"),
        Broken("the connection ended", kind="broken", endpoint="e"),
    ]  # fmt: skip
    for error in errors:
        assert isinstance(error, ClientError) and str(error).startswith("e: ") and "; " in str(error)
    assert isinstance(errors[2], TimedOut) and "4 s" in str(errors[0])
