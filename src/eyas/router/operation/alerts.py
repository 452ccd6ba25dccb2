"""Alerting rules for Prometheus over the metrics of a router, as `eyas router alerts` prints them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import yaml

__all__ = ["RULES", "Rule", "rules"]

HEADER = """\
# Alerting rules for eyas router. In prometheus.yml: rule_files: [eyas_router.rules.yml]
# Thresholds are starting points: set those of time to what your users bear. docs/router.md explains each.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """One rule. It fires once `query` has had a result for `lasting`; `summary` may use Prometheus' templates."""

    name: str
    query: str
    lasting: str
    severity: Literal["critical", "warning"]
    summary: str
    action: str


RULES = (
    Rule(
        name="EyasRouterAbsent",
        query="absent(eyas:router_queue_limit)",
        lasting="2m",
        severity="critical",
        summary="no router is scraped",
        action="Look whether eyas router runs, and whether Prometheus has its key.",
    ),
    Rule(
        name="EyasRouterModelOut",
        query="eyas:router_model_backends_available == 0",
        lasting="1m",
        severity="critical",
        summary="no backend of {{ $labels.model }} can answer",
        action="Requests for it get 503. The page of the router, or GET /router/status, says why each backend is out.",
    ),
    Rule(
        name="EyasRouterBreakerOpen",
        query='eyas:router_backend_breaker{state="closed"} == 0',
        lasting="2m",
        severity="warning",
        summary="the breaker of {{ $labels.backend }} is open",
        action="eyas:router_failures_total{backend} has the kinds of its failures. Look at the engine's own log.",
    ),
    Rule(
        name="EyasRouterBackendFails",
        query=(
            "sum by (job, instance, backend) (rate(eyas:router_failures_total[10m]))"
            " / sum by (job, instance, backend) (rate(eyas:router_sent_total[10m])) > 0.05"
        ),
        lasting="5m",
        severity="warning",
        summary="{{ $labels.backend }} fails {{ $value | humanizePercentage }} of its requests",
        action="Others answer in its place, later. Look at the kinds of its failures.",
    ),
    Rule(
        name="EyasRouterBudgetsSpent",
        query='sum by (job, instance, backend) (increase(eyas:router_failures_total{kind="budget"}[10m])) > 2',
        lasting="0m",
        severity="warning",
        summary="{{ $labels.backend }} hung {{ $value | humanize }} times in 10 minutes",
        action="It accepts requests and does not go on within their budgets: a hang, or budgets that are too short.",
    ),
    Rule(
        name="EyasRouterCanaryFailed",
        query='eyas:router_backend_out{cause="canary"} == 1',
        lasting="0m",
        severity="critical",
        summary="{{ $labels.backend }} failed its canary and does not serve",
        action="It answers a plain question with nonsense: a faulty kernel, template or draft head.",
    ),
    Rule(
        name="EyasRouterAnotherModel",
        query='eyas:router_backend_out{cause="another_model"} == 1',
        lasting="1m",
        severity="warning",
        summary="{{ $labels.backend }} has another model than the file says",
        action="Correct the file of the router, or the backend.",
    ),
    Rule(
        name="EyasRouterOneSymbolLoops",
        query='sum by (job, instance, backend) (increase(eyas:router_guard_trips_total{kind="one_symbol"}[10m])) > 1',
        lasting="0m",
        severity="critical",
        summary="{{ $labels.backend }} repeats one symbol without end",
        action="Known of drafting kernels that are faulty on a GPU. A planned backend restarts without speculation.",
    ),
    Rule(
        name="EyasRouterLoops",
        query='sum by (job, instance, backend) (increase(eyas:router_guard_trips_total{kind="degenerate"}[30m])) > 5',
        lasting="0m",
        severity="warning",
        summary="answers of {{ $labels.backend }} repeat themselves",
        action="Compare with its twin without speculation; if that does it too, it is the model or its sampling.",
    ),
    Rule(
        name="EyasRouterQueueLong",
        query=("sum by (job, instance) (eyas:router_queued) > 0.5 * sum by (job, instance) (eyas:router_queue_limit)"),
        lasting="2m",
        severity="warning",
        summary="{{ $value | humanize }} requests wait",
        action="At max_queue new ones get 429. More backends, or more concurrency where memory allows it.",
    ),
    Rule(
        name="EyasRouterQueueSlow",
        query=(
            "histogram_quantile(0.95, sum by (job, instance, model, le)"
            " (rate(eyas:router_queue_time_seconds_bucket[10m]))) > 30"
        ),
        lasting="5m",
        severity="warning",
        summary="one in twenty requests for {{ $labels.model }} waits longer than {{ $value | humanizeDuration }}",
        action="More backends, or fewer clients.",
    ),
    Rule(
        name="EyasRouterFirstContentSlow",
        query=(
            "histogram_quantile(0.99, sum by (job, instance, model, le)"
            " (rate(eyas:router_time_to_first_content_seconds_bucket[10m]))) > 60"
        ),
        lasting="10m",
        severity="warning",
        summary="the first content of {{ $labels.model }} takes {{ $value | humanizeDuration }} at p99",
        action="Queue, prompts that are not cached, or a backend that hangs before others answer for it.",
    ),
    Rule(
        name="EyasRouterErrors",
        query=(
            'sum by (job, instance) (rate(eyas:router_requests_total{status=~"5.."}[5m]))'
            " / sum by (job, instance) (rate(eyas:router_requests_total[5m])) > 0.02"
        ),
        lasting="5m",
        severity="critical",
        summary="{{ $value | humanizePercentage }} of all requests end in an error of the server",
        action="No other backend could answer for the one that failed, or it failed after the first content.",
    ),
    Rule(
        name="EyasRouterLoadsForever",
        query='eyas:router_backend_condition{state="loading"} == 1',
        lasting="30m",
        severity="warning",
        summary="{{ $labels.backend }} has been loading for half an hour",
        action="eyas logs NAME --explain says what its log means.",
    ),
    Rule(
        name="EyasRouterMemoryEmergency",
        query=(
            'max by (job, instance, pool) (eyas:router_memory_pressure{level="emergency"}) > 0'
            " or sum by (job, instance, pool) (increase(eyas:router_memory_emergencies_total[5m])) > 0"
        ),
        lasting="0m",
        severity="critical",
        summary="the memory of {{ $labels.pool }} ran out: what is not pinned was unloaded, running or not",
        action='The events on the router\'s page say who grew. eyas:router_memory_bytes{owner="others"} is not ours.',
    ),
    Rule(
        name="EyasRouterMemoryCritical",
        query=('sum by (job, instance, pool) (eyas:router_memory_pressure{level=~"critical|emergency"}) > 0'),
        lasting="5m",
        severity="warning",
        summary="the memory of {{ $labels.pool }} has been short for 5 minutes, and nothing is loaded",
        action="What is pinned, or others, take too much: eyas:router_memory_bytes has it by owner.",
    ),
    Rule(
        name="EyasRouterMemoryLate",
        query="sum by (job, instance, backend) (increase(eyas:router_memory_late_total[30m])) > 0",
        lasting="0m",
        severity="warning",
        summary="the memory of {{ $labels.backend }} did not all come back after it was unloaded",
        action="Look for processes of it that are left, containers too, or for others that took the memory meanwhile.",
    ),
    Rule(
        name="EyasRouterMemoryUnknown",
        query="eyas:router_memory_age_seconds > 30",
        lasting="1m",
        severity="warning",
        summary="the memory of {{ $labels.pool }} cannot be measured, and nothing is loaded",
        action="The router's page and log say why: a driver, or /proc, that does not answer.",
    ),
    Rule(
        name="EyasRouterMemoryLarger",
        query=(
            'eyas:router_footprint_bytes{kind="steady"}'
            ' > ignoring (kind) 1.05 * (eyas:router_footprint_bytes{kind="declared"} > 0)'
        ),
        lasting="0m",
        severity="warning",
        summary="{{ $labels.backend }} takes {{ $value | humanize1024 }}B, more than it declares",
        action="The router goes by what it measured. Correct memory and peak in its file, by which --check judges.",
    ),
    Rule(
        name="EyasRouterLoadsRefused",
        query="sum by (job, instance, backend) (increase(eyas:router_loads_refused_total[10m])) > 0",
        lasting="0m",
        severity="warning",
        summary="there is no room for {{ $labels.backend }}, and its requests get 503",
        action="The router's page says which of its numbers does not fit, or who holds the memory.",
    ),
)


def rules() -> str:
    """Return the rules as a file for Prometheus."""
    found = [
        {
            "alert": rule.name,
            "expr": rule.query,
            "for": rule.lasting,
            "labels": {"severity": rule.severity},
            "annotations": {"summary": rule.summary, "description": rule.action},
        }
        for rule in RULES
    ]
    groups = {"groups": [{"name": "eyas_router", "rules": found}]}
    return HEADER + yaml.safe_dump(groups, sort_keys=False, width=100)
