"""Reads how long a server asks to be left alone: `Retry-After` (RFC 9110, 10.2.3) and OpenAI's `Retry-After-Ms`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from time import time

__all__ = ["retry_after_s"]

MAX_S = 1e9  # decades: a number that can be slept and written again


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of `Retry-After`, which may be a date, or of `Retry-After-Ms`; None if there are none.

    The names in `headers` are in lower case, or it does not mind their case.
    """
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return min(seconds, MAX_S)
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, OverflowError):
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)  # "-0000": UTC, and of no known place
    return min(max(0.0, aware.timestamp() - time()), MAX_S)
