"""The classifier of prompts: a linear one over binary features, whose weights ship in `weights.json`.

`tools/train_routes.py` makes the weights. They are whole numbers, so that every machine decides alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import msgspec

from eyas.router.routes.features import features
from eyas.router.settings.schema import ROUTES, RouteName

__all__ = ["WEIGHTS", "Classifier", "Weights"]

WEIGHTS = Path(__file__).with_name("weights.json")


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Trained weights: for every feature, and for all prompts alike, one number for each route in turn."""

    routes: tuple[str, ...]
    bias: tuple[int, ...]
    features: Mapping[str, tuple[int, ...]]


class Classifier:
    """Chooses a route by a prompt."""

    def __init__(self, weights: Weights) -> None:
        rows = [weights.bias, *weights.features.values()]
        if weights.routes != ROUTES or any(len(row) != len(ROUTES) for row in rows):
            raise ValueError(f"weights of other routes: {', '.join(weights.routes)}")
        self._bias = weights.bias
        self._rows = weights.features
        self._known = weights.features.keys()

    @staticmethod
    @cache
    def shipped() -> Classifier:
        """Return the one with the weights of the package, read once."""
        return Classifier(msgspec.json.decode(WEIGHTS.read_bytes(), type=Weights))

    def scores(self, prompt: str) -> dict[RouteName, int]:
        """Return a score for each route: the higher, the likelier."""
        rows = [self._rows[feature] for feature in features(prompt) & self._known]
        return dict(zip(ROUTES, map(sum, zip(self._bias, *rows, strict=True)), strict=True))

    def route(self, prompt: str, among: Collection[RouteName] = ROUTES) -> RouteName:
        """Return the likeliest of some routes; of equal ones the one that `ROUTES` names first."""
        scores = self.scores(prompt)
        return max((name for name in ROUTES if name in among), key=scores.__getitem__)
