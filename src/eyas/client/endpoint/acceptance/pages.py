"""Pages of a server: JSON and Prometheus texts. What cannot be fetched or read is None, never a guess."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import httpx
import msgspec

from eyas.client.refusals import INVALID_JSON

__all__ = ["Metrics", "Sample", "json_page", "metrics_page", "said", "samples_of", "sums_of"]

T = TypeVar("T")


class Sample(NamedTuple):
    """One line of a Prometheus text."""

    name: str
    value: float
    labels: Mapping[str, str] = {}


class Metrics:
    """A Prometheus text. Values are summed over labels (ranks, models)."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = list(samples)
        self._sums = sums_of(self._samples)

    def get(self, name: str) -> float | None:
        """Return a value; None if the server has none of that name."""
        return self._sums.get(name)

    def counts(self, *names: str) -> tuple[int, ...] | None:
        """Return counters; None if one of them is missing."""
        found = [self._sums.get(name) for name in names]
        return None if None in found else tuple(round(value) for value in found if value is not None)

    def by(self, label: str, name: str) -> tuple[int, ...]:
        """Return a counter by a label whose values are numbers from 0; () if there is none."""
        found: dict[int, float] = {}
        for sample in self._samples:
            if sample.name == name and (index := sample.labels.get(label, "")).isdecimal():
                found[int(index)] = found.get(int(index), 0.0) + sample.value
        return tuple(round(found.get(i, 0.0)) for i in range(max(found, default=-1) + 1))

    def gauge(self, name: str) -> float | None:
        """Return the mean of a gauge over its labels, leaving out ranks that show 0, for they have not speculated."""
        values = [sample.value for sample in self._samples if sample.name == name and sample.value > 0]
        return sum(values) / len(values) if values else None

    def started(self, *names: str) -> tuple[float, ...]:
        """Return those values that are other after a restart: of the process, and of `names`, where they are said."""
        return tuple(self._sums[name] for name in ("process_start_time_seconds", *names) if name in self._sums)


def json_page(client: httpx.Client, path: str, kind: type[T]) -> T | None:
    """Return a page of JSON as `kind`."""
    try:
        response = client.get(path)
        return msgspec.json.decode(response.content, type=kind) if response.status_code == 200 else None
    except (httpx.HTTPError, *INVALID_JSON):
        return None


def metrics_page(client: httpx.Client, path: str = "/metrics") -> Metrics | None:
    """Return a Prometheus text."""
    try:
        response = client.get(path)
        return Metrics(samples_of(response.text)) if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None


def samples_of(text: str) -> list[Sample]:
    """Return every sample of a Prometheus text. Raises ValueError for what is none."""
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(text)
    return [Sample(one.name, float(one.value), one.labels) for family in families for one in family.samples]


def sums_of(samples: Iterable[Sample]) -> dict[str, float]:
    """Return the samples by name, each summed over its labels (ranks, models)."""
    found: dict[str, float] = {}
    for sample in samples:
        found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def said(events: Iterable[bytes], kind: type[T]) -> Iterator[T]:
    """Yield what events of an answer say under the names of `kind`; those that are something else are left out."""
    for data in events:
        try:
            yield msgspec.json.decode(data, type=kind)
        except INVALID_JSON:
            continue
