"""Metrics of a router, read by the Prometheus client's own parser, and the alerting rules over them."""

import asyncio
import re
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.router.support.operated import at_backend, operated
from tests.router.support.spark import spark_pool

from eyas.base.serving.failures import FAILURES
from eyas.router.manager.condition import CAUSES, Condition
from eyas.router.manager.visit import Wanted
from eyas.router.operation.alerts import RULES, rules
from eyas.router.relay.outcome import Outcome, Trip
from eyas.router.settings import reader

DOCUMENT = Path(__file__).parents[3] / "docs/router.md"
GIVEN_BY_PROMETHEUS = {"job", "instance"}


def samples(text):
    """Values by name and labels. Each comes once, with a type."""
    found, families = {}, set()
    for family in text_string_to_metric_families(text):
        assert family.name not in families and family.type != "unknown" and family.documentation
        families.add(family.name)
        for sample in family.samples:
            key = (sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


async def scraped(one):
    return samples(await one.page())


def test_all_series_of_the_file_are_there_before_anything_happened():
    async def main():
        async with operated(ready=False) as one:
            return await scraped(one)

    found = asyncio.run(main())
    for backend in ("spark", "plain", "small"):
        assert found["eyas:router_backend_condition", f"backend={backend}", "state=unknown"] == 1
        assert found["eyas:router_backend_condition", f"backend={backend}", "state=ready"] == 0
        assert found["eyas:router_backend_breaker", f"backend={backend}", "state=closed"] == 1
        assert found["eyas:router_sent_total", f"backend={backend}"] == 0
        for kind in FAILURES:
            assert found["eyas:router_failures_total", f"backend={backend}", f"kind={kind}"] == 0
        for cause in CAUSES:
            assert found["eyas:router_backend_out", f"backend={backend}", f"cause={cause}"] == 0
    assert found["eyas:router_backend_concurrency", "backend=spark"] == 4
    assert found["eyas:router_model_backends", "model=gpt-oss-120b"] == 2
    assert found["eyas:router_model_backends_available", "model=gpt-oss-120b"] == 0
    assert found["eyas:router_routes_total", "route=MATH"] == 0
    assert found["eyas:router_queue_limit",] == 256
    assert found["process_resident_memory_bytes",] > 1 << 20


def test_what_happens_at_the_manager_is_counted():
    async def main():
        async with operated() as one:
            manager, both = one.manager, ("spark", "plain")
            for _ in range(5):  # of five requests each fails at the first and is answered by the second
                visit, name = await at_backend(manager, "gpt-oss-120b", both)
                assert name == "spark"
                visit.failed("budget")
                async for _news in visit.news():
                    pass
                visit.done()
            held, name = await at_backend(manager, "gpt-oss-120b", both)
            full, _ = await at_backend(manager, "gpt-oss-20b", ("small",))
            waits = manager.arrive(Wanted(model="gpt-oss-20b", backends=("small",)))
            now = await scraped(one)
            assert name == "plain"  # the breaker of the other is open
            full.full(30.0)
            manager.report("small", Condition(state="out", reason="it counts wrong", cause="canary"))
            held.left()
            waits.left()
            return now, await scraped(one)

    now, then = asyncio.run(main())
    assert now["eyas:router_failures_total", "backend=spark", "kind=budget"] == 5
    assert now["eyas:router_sent_total", "backend=spark"] == 5 and now["eyas:router_sent_total", "backend=plain"] == 6
    assert now["eyas:router_full_total", "backend=small"] == 0
    assert now["eyas:router_breaker_opened_total", "backend=spark"] == 1
    assert now["eyas:router_backend_breaker", "backend=spark", "state=open"] == 1
    assert now["eyas:router_backend_breaker", "backend=spark", "state=closed"] == 0
    assert now["eyas:router_backend_in_flight", "backend=plain"] == 1
    assert now["eyas:router_model_backends_available", "model=gpt-oss-120b"] == 1
    assert now["eyas:router_queued", "model=gpt-oss-20b"] == 1
    assert then["eyas:router_full_total", "backend=small"] == 1
    assert then["eyas:router_refused_total", "model=gpt-oss-20b"] >= 1
    assert then["eyas:router_backend_out", "backend=small", "cause=canary"] == 1
    assert then["eyas:router_backend_in_flight", "backend=plain"] == 0
    assert then["eyas:router_queued", "model=gpt-oss-20b"] == 0


def test_two_loops_of_one_symbol_are_counted_once_as_a_loop():
    async def main():
        async with operated() as one:
            for _ in range(2):
                one.manager.sighted("spark", "one_symbol")
                one.operation.record(Trip(backend="spark", model="gpt-oss-120b", kind="one_symbol", action="observe"))
            return await scraped(one)

    found = asyncio.run(main())
    assert found["eyas:router_guard_trips_total", "action=observe", "backend=spark", "kind=one_symbol"] == 2
    assert found["eyas:router_guard_trips_total", "action=act", "backend=spark", "kind=one_symbol"] == 0
    assert found["eyas:router_loops_total", "backend=spark"] == 1


def test_outcomes_of_the_relay_are_counted():
    async def main():
        async with operated() as one:
            common = {"request_id": "r", "path": "/v1/chat/completions", "model": "gpt-oss-120b", "e2e_s": 2.0}
            one.operation.record(
                Outcome(status=200, route="MATH", backend="plain", num_asked=3, queue_s=0.2, ttft_s=0.7, **common)
            )
            one.operation.record(Outcome(status=503, num_asked=0, **common))
            one.operation.record(Outcome(request_id="r", path="/v1/messages", status=404))  # of no model
            assert (await one.http.get("/nothing")).status_code == 404
            return await scraped(one)

    found = asyncio.run(main())
    assert found["eyas:router_requests_total", "path=/v1/chat/completions", "status=200"] == 1
    assert found["eyas:router_requests_total", "path=/v1/messages", "status=404"] == 1
    assert found["eyas:router_fallbacks_total", "model=gpt-oss-120b"] == 2
    assert found["eyas:router_routes_total", "route=MATH"] == 1
    assert found["eyas:router_queue_time_seconds_count", "model=gpt-oss-120b"] == 1
    assert found["eyas:router_time_to_first_content_seconds_sum", "model=gpt-oss-120b"] == 0.7
    assert found["eyas:router_e2e_seconds_count", "model=gpt-oss-120b"] == 2
    assert found["eyas:http_errors_total", "status=404"] == 1


def selectors(node):
    """Every vector selector below a node of a parsed query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for name in ("expr", "lhs", "rhs", "param", "args", "vector_selector"):
        inner = getattr(node, name, None)
        for one in inner if isinstance(inner, list | tuple) else [inner]:
            if one is not None and not isinstance(one, str | float):
                yield from selectors(one)


@pytest.fixture(scope="module")
def live():
    """Labels of each series of a router that has answered, by name."""

    async def main():
        async with operated(pools=(spark_pool(),)) as one:
            one.operation.record(Outcome(request_id="r", path="/v1/responses", status=502, model="gpt-oss-20b"))
            return await one.page()

    labels = {}
    for family in text_string_to_metric_families(asyncio.run(main())):
        for sample in family.samples:
            series = labels.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                series.setdefault(name, set()).add(value)
    return labels


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_parses_and_names_what_exists(live, rule):
    parsed = promql_parser.parse(rule.query)
    found = list(selectors(parsed))
    assert found
    for one in found:
        assert one.name in live, one.name
        for matcher in one.matchers.matchers:
            assert matcher.name in live[one.name]
            if matcher.op == promql_parser.MatchOp.Equal:
                assert matcher.value in live[one.name][matcher.name], "the value is one that exists"
    known = GIVEN_BY_PROMETHEUS.union(*(live[one.name] for one in found))
    assert set(grouped(parsed)) <= known
    for name in used_in(rule.summary):
        assert name in known


def grouped(node):
    """Every label that a query groups by."""
    modifier = getattr(node, "modifier", None)
    if isinstance(node, promql_parser.AggregateExpr) and modifier is not None:
        yield from modifier.labels
    for name in ("expr", "lhs", "rhs", "args"):
        inner = getattr(node, name, None)
        for one in inner if isinstance(inner, list | tuple) else [inner]:
            if one is not None and not isinstance(one, str | float):
                yield from grouped(one)


def used_in(summary):
    return [part.split()[0].split("}")[0] for part in summary.split("$labels.")[1:]]


def test_selectors_and_labels_of_a_query_are_found():
    query = 'sum by (a, b) (rate(x_total{k="v"}[5m])) / on (a) histogram_quantile(0.9, y) > 0.5 * absent(z)'
    parsed = promql_parser.parse(query)
    assert [one.name for one in selectors(parsed)] == ["x_total", "y", "z"]
    assert list(grouped(parsed)) == ["a", "b"]
    assert used_in("{{ $labels.model }} of {{ $labels.backend }}") == ["model", "backend"]


def test_the_file_is_a_rule_file():
    (group,) = yaml.safe_load(rules())["groups"]
    assert group["name"] == "eyas_router"
    assert [one["alert"] for one in group["rules"]] == [rule.name for rule in RULES]
    assert len({rule.name for rule in RULES}) == len(RULES)
    for one in group["rules"]:
        assert set(one) == {"alert", "expr", "for", "labels", "annotations"}
        assert one["labels"]["severity"] in ("critical", "warning") and one["annotations"]["description"]


def test_the_documents_name_every_metric_rule_and_key_of_the_file(live):
    text = DOCUMENT.read_text()
    for name in live:
        family = re.sub("_(bucket|sum|count)$", "", name)
        assert f"`{family}`" in text or not name.startswith("eyas:"), name
    for rule in RULES:
        assert f"`{rule.name}`" in text
    critical = {rule.name for rule in RULES if rule.severity == "critical"}
    first = re.findall(r"\| `(Eyas\w+)`", text)[: len(critical)]
    assert len(critical) == 6 and set(first) == critical, "the first six are the critical ones"
    for key in (*reader.TOP, *reader.BACKEND, *reader.ROUTE, *reader.SERVER):
        assert re.search(rf"`(?:[\w.]*\.)?{key}[`.]", text), key


def test_the_files_of_the_documents_can_be_read(tmp_path):
    text = DOCUMENT.read_text()
    quick = re.search(r"<<'END'\n(.*?)END\n", text, re.DOTALL)[1]
    whole = re.search(r"```\n(server:.*?)```", text, re.DOTALL)[1]
    (tmp_path / "router.yaml").write_text(quick)
    found = reader.examine(tmp_path / "router.yaml", {"BOX_KEY": "a"})
    assert found.problems == () and found.settings.models[0].backends == ("spark", "box")
    (tmp_path / "router.yaml").write_text(whole)
    found = reader.examine(tmp_path / "router.yaml", {"GPU_KEY": "a", "ROUTER_KEY": "b"})
    assert [problem.partition(":")[0] for problem in found.problems] == ["backends.spark.plan", "backends.plain.plan"]
