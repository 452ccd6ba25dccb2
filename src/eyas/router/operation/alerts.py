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
