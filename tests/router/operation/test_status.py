"""The status API: what it shows, who may start and stop, and that no key is in any answer, event or log line."""

import asyncio
import json
import logging

import pytest
from tests.router.support.operated import BACKEND_KEY, SERVER_KEY, at_backend, operated, small_settings

from eyas.gateway.page.live import MAX_VIEWERS
from eyas.router.manager.condition import Condition
from eyas.router.operation import feed
from eyas.router.operation.hiding import hider, shown_url
from eyas.router.operation.status import ORDERS
from eyas.router.relay.outcome import Outcome

SECRETS = (BACKEND_KEY, SERVER_KEY, "word@", "user:")
AUTH = {"authorization": f"Bearer {SERVER_KEY}"}


async def messages(one, wanted, headers=None):
    """Messages of the feed until `wanted` of them is true."""
    found = []
    async with one.http.stream("GET", "/router/events", headers=headers) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if wanted(found):
                    return found
    return found


def test_how_all_stands():
    async def main():
        async with operated() as one:
            visit, _ = await at_backend(one.manager, "gpt-oss-120b", ("spark", "plain"))
            one.manager.report("small", Condition(state="out", reason="it is another model", cause="another_model"))
            status = (await one.http.get("/router/status")).json()
            ready = await one.http.get("/ready")
            visit.done()
            health, version = await one.http.get("/health"), await one.http.get("/version")
            assert health.json() == {"status": "ok"} and set(version.json()) == {"version", "commit"}
            return status, ready

    status, ready = asyncio.run(main())
    spark, plain, small = status["backends"]
    assert (spark["url"], spark["state"], spark["breaker"]) == ("http://127.0.0.1:9/", "ready", "closed")
    assert (spark["in_flight"], spark["concurrency"], spark["model"]) == (1, 4, "gpt-oss")
    assert plain["twin_of"] == "spark"
    assert (small["state"], small["cause"], small["reason"]) == ("out", "another_model", "it is another model")
    assert [(one["name"], one["num_available"]) for one in status["models"]] == [
        ("gpt-oss-120b", 2),
        ("gpt-oss-20b", 0),
    ]
    assert [(one["name"], one["effort"], one["model"]) for one in status["routes"]] == [
        ("MATH", "high", "gpt-oss-120b"),
        ("SIMPLE_CODE", "low", "gpt-oss-20b"),
    ]
    assert status["can_control"] is False
    assert ready.status_code == 200 and ready.json() == {"status": "ready", "model": "gpt-oss-120b", "available": 2}


def test_it_is_not_ready_while_no_backend_of_the_resident_model_is():
    async def main():
        async with operated(ready=False) as one:
            one.manager.report("small", Condition(state="ready"))
            first = await one.http.get("/ready")
            one.manager.report("plain", Condition(state="ready"))
            return first, await one.http.get("/ready")

    first, second = asyncio.run(main())
    assert first.status_code == 503 and "gpt-oss-120b" in first.json()["error"]
    assert second.status_code == 200


@pytest.mark.parametrize("verb", ["start", "stop", *ORDERS])
def test_without_configured_keys_nobody_gives_orders(verb):
    async def main():
        async with operated() as one:
            answers = [
                await one.http.post(f"/router/backends/{name}/{verb}", headers=headers)
                for name in ("spark", "nothing")
                for headers in ({}, AUTH)
            ]
            assert one.control.orders == []
            return answers

    for answer in asyncio.run(main()):
        assert answer.status_code == 403
        error = answer.json()["error"]
        assert error["code"] == "key_needed" and "eyas key" in error["message"]


def test_with_a_key_backends_are_started_and_stopped():
    async def main():
        async with operated(small_settings(SERVER_KEY)) as one:
            post = one.http.post
            for headers in ({}, {"authorization": "Bearer wrong"}):
                for verb in ("start", "stop", *ORDERS):
                    assert (await post(f"/router/backends/spark/{verb}", headers=headers)).status_code == 401
                for path in ("/router/status", "/router/events", "/metrics"):
                    assert (await one.http.get(path, headers=headers)).status_code == 401
            assert one.control.orders == []
            assert (await post("/router/backends/spark/stop", headers=AUTH)).status_code == 202
            assert (await post("/router/backends/spark/start", headers={"x-api-key": SERVER_KEY})).status_code == 202
            for verb in ORDERS:
                assert (await post(f"/router/backends/small/{verb}", headers=AUTH)).status_code == 202
            refused = await post("/router/backends/plain/stop", headers=AUTH)
            unknown = await post("/router/backends/sparc/stop", headers=AUTH)
            assert (await one.http.get("/router/backends/spark/stop", headers=AUTH)).status_code == 405
            assert (await one.http.get("/router/status", headers=AUTH)).json()["can_control"] is True
            return one.control.orders, refused, unknown

    orders, refused, unknown = asyncio.run(main())
    assert orders == [("stop", "spark"), ("start", "spark"), *((verb, "small") for verb in ORDERS)]
    assert refused.status_code == 409 and "last one" in refused.json()["error"]["message"]
    assert unknown.status_code == 404 and "did you mean 'spark'" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/page/router.js", "/router/status", "/router/events", "/metrics", "/ready"])
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.example"}, "host_not_allowed"),
        ({"origin": "https://evil.example"}, "origin_not_allowed"),
        ({"sec-fetch-site": "cross-site"}, "origin_not_allowed"),
    ],
)
def test_other_hosts_and_pages_get_nothing(path, headers, code):
    async def main():
        async with operated() as one:
            return await one.http.get(path, headers=headers)

    answer = asyncio.run(main())
    assert answer.status_code == 403 and answer.json()["error"]["code"] == code


def test_the_feed_begins_with_the_status_and_what_happened_last_and_goes_on():
    async def main():
        async with operated() as one:
            visit, _ = await at_backend(one.manager, "gpt-oss-120b", ("spark", "plain"))
            visit.failed("broken", "it went away")
            visit.left()
            asyncio.get_running_loop().call_later(
                0.2, one.manager.report, "small", Condition(state="out", cause="stopped", reason="stopped by hand")
            )
            return await messages(one, lambda found: sum("status" in message for message in found) == 2)

    found = asyncio.run(main())
    assert "status" in found[0]
    events = [message["event"] for message in found if "event" in message]
    assert [event["kind"] for event in events if event["kind"] != "condition"] == ["failed"]
    failed = next(event for event in events if event["kind"] == "failed")
    assert (failed["backend"], failed["failure"], failed["text"]) == ("spark", "broken", "it went away")
    assert events[-1]["condition"] == "out" and "stopped by hand" in events[-1]["text"]
    assert found[-1]["status"]["backends"][2]["state"] == "out"


def test_a_storm_of_events_is_cut_and_counted():
    async def main():
        async with operated() as one:

            def storm():
                for number in range(1, 101):
                    one.manager.report("small", Condition(state="out" if number % 2 else "ready", cause="failed"))

            asyncio.get_running_loop().call_later(0.2, storm)
            return await messages(one, lambda found: any("lost" in message for message in found))

    found = asyncio.run(main())
    first = next(index for index, message in enumerate(found) if "lost" in message)
    assert found[first]["lost"] == 100 - feed.MAX_AT_ONCE
    shown = [message for message in found[:first] if message.get("event", {}).get("condition") == "out"]
    assert len(shown) == feed.MAX_AT_ONCE // 2


def test_too_many_viewers_are_refused_and_places_come_back():
    async def main():
        async with operated() as one, asyncio.timeout(20):
            opened = [one.http.stream("GET", "/router/events") for _ in range(MAX_VIEWERS)]
            for stream in opened:
                assert (await stream.__aenter__()).status_code == 200
            refused = await one.http.get("/router/events")
            assert refused.status_code == 429 and refused.headers["retry-after"]
            for stream in opened:
                await stream.__aexit__(None, None, None)
            while True:  # the server notices a moment later
                async with one.http.stream("GET", "/router/events") as again:
                    if again.status_code == 200:
                        return
                await asyncio.sleep(0.02)

    asyncio.run(main())


def test_open_pages_do_not_delay_the_stop():
    async def main():
        async with operated() as one:
            task = asyncio.create_task(messages(one, lambda found: False))
            await asyncio.sleep(0.1)
            one.operation.end_streams()
            async with asyncio.timeout(5):
                assert len(await task) >= 1

    asyncio.run(main())


def test_no_key_is_in_any_answer_event_or_line(caplog):
    said = f"401: the key {BACKEND_KEY} is wrong, so is {SERVER_KEY}"

    async def main():
        async with operated(small_settings(SERVER_KEY)) as one:
            visit, _ = await at_backend(one.manager, "gpt-oss-120b", ("spark",))
            visit.failed("status", said)
            visit.left()
            one.manager.report("small", Condition(state="out", cause="canary", reason=said))
            one.operation.record(
                Outcome(request_id="r", path="/v1/responses", status=502, error=said, model="gpt-oss-120b")
            )
            found = await messages(
                one, lambda found: any(m.get("event", {}).get("condition") == "out" for m in found), AUTH
            )
            paths = ("/", "/page/router.js", "/router/status", "/metrics", "/ready", "/version", "/nothing")
            answers = [await one.http.get(path, headers=AUTH) for path in paths]
            answers.append(await one.http.post("/router/backends/spark/stop", headers={"authorization": "Bearer x"}))
            return json.dumps(found) + "".join(answer.text + str(answer.headers) for answer in answers)

    with caplog.at_level(logging.DEBUG):
        text = asyncio.run(main())
    lines = [str(vars(record)) for record in caplog.records if record.name.startswith("eyas.router.operation")]
    assert "[key] is wrong" in text and any("[key] is wrong" in line for line in lines)
    for secret in SECRETS:
        assert secret not in text
        assert not any(secret in line for line in lines)


def test_longer_keys_go_first_and_a_file_without_keys_hides_nothing():
    settings = small_settings("abc,abc-and-more, spaced ")
    assert hider(settings)(f"abc-and-more {BACKEND_KEY} spaced abc") == "[key] [key] [key] [key]"
    assert shown_url("https://u:p@box.example:8/v?key=1#x") == "https://box.example:8/v"
