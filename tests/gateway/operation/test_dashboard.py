"""The dashboard for Grafana, and those published for vLLM, against the metrics of a server that has answered."""

import enum
import json
import re
import typing
import warnings
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.serving import served

FILE = Path(__file__).parents[3] / "docs/grafana/eyas.json"
GIVEN_BY_PROMETHEUS = {"job", "instance"}
EMPTY = {"eyas:memory_bytes"}  # of an engine that computes nothing
WORDS = {"by", "on", "without", "ignoring", "group_left", "group_right", "and", "or", "unless", "offset", "bool"}
# What vLLM's own dashboards ask for: examples/observability/prometheus_grafana/grafana.json of vllm-project/vllm and
# helm/dashboards/vllm-model-metrics-dashboard.json of vllm-project/production-stack, as of 2026-08.
OF_VLLM = {
    *("vllm:e2e_request_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_sum"),
    *("vllm:e2e_request_latency_seconds_count", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    *("vllm:inter_token_latency_seconds_bucket", "vllm:inter_token_latency_seconds_sum"),
    *("vllm:inter_token_latency_seconds_count", "vllm:num_requests_running", "vllm:num_requests_waiting"),
    *("vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_sum"),
    *("vllm:time_to_first_token_seconds_count", "vllm:kv_cache_usage_perc", "vllm:request_prompt_tokens_bucket"),
    *("vllm:request_generation_tokens_bucket", "vllm:request_success_total", "vllm:request_queue_time_seconds_sum"),
    *("vllm:request_prefill_time_seconds_sum", "vllm:request_decode_time_seconds_sum"),
    *("vllm:request_max_num_generation_tokens_sum", "vllm:request_time_per_output_token_seconds_bucket"),
    *("vllm:request_time_per_output_token_seconds_sum", "vllm:request_time_per_output_token_seconds_count"),
}


@pytest.fixture(scope="module")
def samples():
    """Labels of each sample of a server that has answered, and refused something, by the sample's name."""
    with served("null") as server:
        with server.ask(max_tokens=30) as answer:
            answer.read()
        server.get("/nothing")
        text, pid = server.get("/metrics").text, server.engine_pid
        labels: dict[str, set[str]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels.setdefault(sample.name, set()).update(sample.labels)
                if sample.name == "eyas:engine_process_resident_memory_bytes":
                    in_use = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
                    assert in_use / 2 < sample.value < in_use * 2
        return labels


def dashboard():
    return json.loads(FILE.read_text())


def queries(board):
    """(what asks, PromQL) of every panel and variable."""
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.sub(r"label_values\((.*), (\w+)\)", r"sum by (\2) (\1)", variable["query"])


def read_query(query):
    """Names of metrics in a PromQL query, and labels that it selects or groups by.

    The shapes used here only: selectors, ranges, functions, aggregations with `by` in front.
    """
    labels = {
        name for group in re.findall(r"\{(.*?)\}", query) for name in re.findall(r'(\w+)\s*(?:=~|!=|!~|=)\s*"', group)
    }
    grouped = r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)"
    labels |= {name for group in re.findall(grouped, query) for name in re.findall(r"\w+", group)}
    rest = re.sub(r"\{.*?\}|\[.*?\]", "", re.sub(grouped, "", query))
    return {name for name in re.findall(r"[A-Za-z_:][\w:]*\b(?!\s*\()", rest) if name not in WORDS}, labels


def test_names_and_labels_of_a_query_are_found():
    assert read_query('1 + sum by (le, x) (rate(vllm:a_total{m="$m", n=~"b"}[5m])) / on () group_left () c_d') == (
        {"vllm:a_total", "c_d"},
        {"le", "x", "m", "n"},
    )


def test_every_query_of_ours_finds_its_metrics(samples):
    seen = set()
    for title, query in queries(dashboard()):
        names, labels = read_query(query)
        assert names - EMPTY <= set(samples), (title, query)
        known = set().union(
            GIVEN_BY_PROMETHEUS,
            *(samples.get(name, {"owner"} | samples["vllm:num_requests_running"]) for name in names),
        )
        assert labels <= known, (title, query)
        seen |= names
    assert len(seen) > 30


def test_every_query_of_vllms_finds_its_metrics(samples):
    assert set(samples) >= OF_VLLM
    assert all({"model_name", "engine"} <= samples[name] for name in OF_VLLM)
    assert "finished_reason" in samples["vllm:request_success_total"]


def test_both_processes_are_measured(samples):
    for name in ("resident_memory_bytes", "virtual_memory_bytes", "cpu_seconds_total", "start_time_seconds"):
        assert {f"process_{name}", f"eyas:engine_process_{name}"} <= set(samples)
    assert {"process_open_fds", "process_max_fds"} <= set(samples)


def matches(value, hint) -> bool:
    """Whether a value is of an annotated type. Objects of the SDK are looked into."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any or isinstance(hint, typing.TypeVar):
        return True
    if inner and origin not in (list, dict, typing.Literal):
        return any(matches(value, one) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(matches(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(matches(one, inner[1]) for one in value.values())
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in [member.value for member in hint]
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        return False
    hints = typing.get_type_hints(hint) if hasattr(hint, "from_json") else {}
    return all(matches(getattr(value, name), one) for name, one in hints.items() if getattr(value, name) is not None)


def lost(before, after, path=""):
    """What of one JSON value is not in another."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [one for key in before for one in lost(before[key], after.get(key), f"{path}/{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [one for i, pair in enumerate(zip(before, after, strict=True)) for one in lost(*pair, f"{path}/{i}")]
    return [] if before == after else [path]


def test_it_is_a_dashboard_by_grafanas_schema():
    """The SDK's types are generated from Grafana's schema: reading them drops what it does not know."""
    with warnings.catch_warnings():  # the classic model, which every Grafana imports, is called old by the SDK
        warnings.simplefilter("ignore", DeprecationWarning)
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard
    register_default_plugins()

    def check(board):
        read = Dashboard.from_json(board)
        return lost(board, json.loads(JSONEncoder().encode(read))), matches(read, Dashboard)

    board = dashboard()
    assert check(board) == ([], True)
    board["panels"][1]["gridpos"] = board["panels"][1]["gridPos"]
    assert check(board) == (["/panels/1/gridpos"], True)
    board["panels"][1]["gridPos"]["h"] = "8"
    assert check(board)[1] is False


def test_panels_lie_side_by_side():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [(panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y) for panel in panels
             for x in range(panel["gridPos"]["w"]) for y in range(panel["gridPos"]["h"])]  # fmt: skip
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) == 23
