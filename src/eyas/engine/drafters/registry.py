"""The kinds of drafters by name. A new kind is a file in this folder and a line below."""

from __future__ import annotations

from eyas.engine.drafters.base import Drafter
from eyas.engine.drafters.eagle3 import Eagle3Drafter
from eyas.engine.drafters.ngram import NgramDrafter

__all__ = ["DRAFTERS"]

DRAFTERS: dict[str, type[Drafter]] = {"eagle3": Eagle3Drafter, "ngram": NgramDrafter, "none": Drafter}
