"""Trains the classifier of `eyas router`'s routes, and writes its weights into the package.

    python tools/train_routes.py            # trains, writes weights.json
    python tools/train_routes.py --folds    # cross-validates over the training half, by which settings are chosen
    python tools/train_routes.py --held-out # the table of the held-out half, as Markdown

`tools/routes/prompts.jsonl` has 300 prompts written by hand, 50 for each route. Half of them, which half only their
places in the file and SEED decide, are never trained on. The other half and the sentences that `tools/routes/phrases.json`
spells out are. Logistic regression with L2, by stochastic gradient descent with AdaGrad's steps; seeded, on one thread.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

from eyas.router.routes.classifier import WEIGHTS, Classifier, Weights
from eyas.router.routes.features import features
from eyas.router.settings.schema import ROUTES

DATA = Path(__file__).parent / "routes"
SEED = 19


class Prompt(NamedTuple):
    route: str
    text: str


def written() -> list[Prompt]:
    """Return the prompts written by hand, in their order."""
    lines = (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    return [Prompt(**json.loads(line)) for line in lines]


def halves(num_prompts: int) -> tuple[list[int], list[int]]:
    """Return the places of prompts to train on, and of those that are held out. Knows nothing of what they say."""
    held_out = set(Random(SEED).sample(range(num_prompts), num_prompts // 2))
    return [at for at in range(num_prompts) if at not in held_out], sorted(held_out)
