"""Families of Prometheus metrics from counts by label values; all but those of `family` are named `eyas:router_`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from eyas.base.histogram import Histogram

__all__ = ["Family", "Labels", "counter", "family", "gauge", "histogram", "zeros"]

Family = GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily
Labels = tuple[str, ...]
PREFIX = "eyas:router_"


def zeros(labels: Iterable[Labels]) -> Counter[Labels]:
    """Return counts of 0, so that the first increase of each is seen."""
    return Counter(dict.fromkeys(labels, 0))


def family(kind: Any, name: str, text: str, labels: Sequence[str], values: Mapping[Labels, float]) -> Any:
    """Return a family of one kind, whose name is the whole one."""
    found = kind(name, text, labels=labels)
    for label_values, value in sorted(values.items()):
        found.add_metric(label_values, float(value))
    return found


def gauge(name: str, text: str, labels: Sequence[str], values: Mapping[Labels, float]) -> Family:
    """Return a family of values that go up and down."""
    found: Family = family(GaugeMetricFamily, PREFIX + name, text, labels, values)
    return found


def counter(name: str, text: str, labels: Sequence[str], values: Mapping[Labels, float]) -> Family:
    """Return a family of counts."""
    found: Family = family(CounterMetricFamily, PREFIX + name, text, labels, values)
    return found


def histogram(name: str, text: str, label: str, by_value: Mapping[str, Histogram]) -> Family:
    """Return a family of histograms, by the values of one label."""
    found = HistogramMetricFamily(PREFIX + name, text, labels=[label])
    for value, one in by_value.items():
        found.add_metric([value], *one.buckets())
    return found
