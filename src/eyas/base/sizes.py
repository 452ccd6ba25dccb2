"""Reads sizes as people write them."""

from __future__ import annotations

import re

from eyas.base.errors import UserError

__all__ = ["parse_size"]

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt]?)(i?)b|(%))", re.ASCII | re.IGNORECASE)


def parse_size(text: str, whole: int) -> int:
    """Read `90GiB`, `96.6 GB` (of 10^9 bytes) or `80%` (of `whole` bytes) as bytes. Raises UserError for the rest."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise UserError(f"wants a size with its unit, such as 90GiB, 96GB or 80%, got '{text[:40]}'")
    if match[4]:
        return int(float(match[1]) / 100 * whole)
    return int(float(match[1]) * (UNITS if match[3] else DECIMAL)[match[2].lower()])
