"""Metrics of requests that went through the real relay and manager to scripted backends."""

import asyncio
import json

from prometheus_client.parser import text_string_to_metric_families
from tests.router.support.relayed import relayed, settings_of
from tests.router.support.scripted import ScriptedBackend

from eyas.router.operation.metrics import Metrics
from eyas.router.operation.status import StatusMaker
from eyas.router.relay.outcome import Trip
from eyas.router.settings.schema import RouteSettings

ROUTES = (RouteSettings(name="MATH", effort="high"),)


async def ask(one, text, **fields):
    body = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": json.dumps(text)}], **fields}
    async with one.session.post(f"{one.url}/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.text()


def test_a_fallback_a_route_a_loop_and_a_wrong_model():
    async def main():
        async with ScriptedBackend("a").serving() as a, ScriptedBackend("b").serving() as b:
            settings = settings_of([a, b], routes=ROUTES, guard="observe")
            async with relayed(a, b, settings=settings) as one:
                metrics = Metrics(StatusMaker(settings, one.manager.snapshot, can_control=False))
                one.manager.listeners.append(metrics.happened)
                assert (await ask(one, {"mark": "m", "on": {"a": {"status": 500}}}))[0] == 200
                assert (await ask(one, {"mark": "n"}, model="route/MATH"))[0] == 200
                status, text = await ask(one, {"loop": "!!!!!!!!", "pieces": 200})
                assert status == 200 and "[DONE]" in text
                assert (await ask(one, {}, model="skripted"))[0] == 404
                for news in one.news:
                    metrics.record(news)
                return metrics.text().decode(), [news for news in one.news if isinstance(news, Trip)]

    page, trips = asyncio.run(main())
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    chat = "/v1/chat/completions"
    assert values["eyas:router_requests_total", chat, "200"] == 3
    assert values["eyas:router_requests_total", chat, "404"] == 1
    assert values["eyas:router_fallbacks_total", "scripted"] == 1
    assert values["eyas:router_failures_total", "a", "status"] == 1
    assert values["eyas:router_sent_total", "a"] == 3 and values["eyas:router_sent_total", "b"] == 1
    assert values["eyas:router_routes_total", "MATH"] == 1
    assert values["eyas:router_time_to_first_content_seconds_count", "scripted"] == 3
    assert values["eyas:router_queue_time_seconds_count", "scripted"] == 3
    (trip,) = trips
    assert values["eyas:router_guard_trips_total", "observe", "a", trip.kind] == 1
    assert values["eyas:router_backend_in_flight", "a"] == 0
