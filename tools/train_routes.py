"""Trains the classifier of `eyas router`'s routes, and writes its weights into the package.

    python tools/train_routes.py            # trains, writes weights.json
    python tools/train_routes.py --folds    # cross-validates over the training half, by which settings are chosen
    python tools/train_routes.py --held-out # the table of the held-out half, as Markdown
    python tools/train_routes.py --held-out http://127.0.0.1:8000/v1  # the same for `decide: model` and the model there

`tools/routes/prompts.jsonl` has 300 prompts written by hand, 50 for each route. Half of them are never trained on;
which ones, their places in the file and SEED decide. The other half is trained on, together with the sentences that
`tools/routes/phrases.json` spells out. Logistic regression with L2, stochastic gradient descent with AdaGrad's steps.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import httpx
import numpy as np

from eyas.router.routes.classifier import WEIGHTS, Classifier, Weights
from eyas.router.routes.deciding import answer_of, question
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


class Settings(NamedTuple):
    """How it is trained; chosen by `--folds`."""

    sentences: int = 300  # spelt out for each route
    repeats: int = 4  # of each prompt written by hand
    epochs: int = 4
    step: float = 0.1
    l2: float = 1e-4
    min_count: int = 3  # prompts that have a feature
    scale: int = 32  # of the whole numbers that the weights become


def spelt_out(num_each: int, avoid: set[str]) -> list[Prompt]:
    """Return `num_each` sentences for each route, in turn, their slots filled at random; none of those in `avoid`."""
    data = json.loads((DATA / "phrases.json").read_text(encoding="utf-8"))
    slot = re.compile("|".join(rf"\{{{name}\}}" for name in data["slots"]))
    random = Random(SEED)
    prompts = []
    for route in ROUTES:
        sentences = data["sentences"][route]
        for at in range(num_each):
            text = slot.sub(lambda found: random.choice(data["slots"][found[0][1:-1]]), sentences[at % len(sentences)])
            if text not in avoid:
                prompts.append(Prompt(route, text))
    return prompts


def trained(prompts: Sequence[Prompt], settings: Settings) -> Weights:
    """Return the weights that tell the routes of `prompts` apart."""
    found = [sorted(features(prompt.text)) for prompt in prompts]
    counts = Counter(feature for each in found for feature in each)
    known = sorted(feature for feature, count in counts.items() if count >= settings.min_count)
    places = {feature: at for at, feature in enumerate(known)}
    rows = [np.array([places[each] for each in one if each in places], dtype=np.int64) for one in found]
    targets = [ROUTES.index(prompt.route) for prompt in prompts]
    bias_row = len(known)
    weights = np.zeros((len(known) + 1, len(ROUTES)))
    squares = np.full_like(weights, 1e-8)
    order, random = list(range(len(prompts))), Random(SEED)
    for _ in range(settings.epochs):
        random.shuffle(order)
        for at in order:
            row = np.append(rows[at], bias_row)
            scores = weights[row].sum(axis=0)
            chances = np.exp(scores - scores.max())
            error = chances / chances.sum()
            error[targets[at]] -= 1
            slope = error + settings.l2 * weights[row]
            squares[row] += slope**2
            weights[row] -= settings.step * slope / np.sqrt(squares[row])
    whole = np.rint(weights * settings.scale).astype(int).tolist()
    kept = {feature: tuple(whole[at]) for feature, at in places.items() if any(whole[at])}
    return Weights(routes=ROUTES, bias=tuple(whole[bias_row]), features=kept)


def final_weights(settings: Settings) -> Weights:
    """Return the weights from all that may be trained on."""
    prompts = written()
    own, _ = halves(len(prompts))
    return _trained_with([prompts[at] for at in own], {prompt.text for prompt in prompts}, settings)


def _trained_with(own: list[Prompt], avoid: set[str], settings: Settings) -> Weights:
    return trained(own * settings.repeats + spelt_out(settings.sentences, avoid), settings)


def folds(settings: Settings, num_folds: int = 5) -> float:
    """Return the share of the training half that is right, each fifth judged by what was trained without it."""
    prompts = written()
    own, _ = halves(len(prompts))
    Random(SEED).shuffle(own)
    avoid = {prompt.text for prompt in prompts}
    num_right = 0
    for fold in range(num_folds):
        judged = {*own[fold::num_folds]}
        kept = [prompts[at] for at in own if at not in judged]
        classifier = Classifier(_trained_with(kept, avoid, settings))
        num_right += sum(classifier.route(prompts[at].text) == prompts[at].route for at in judged)
    return num_right / len(own)


def held_out() -> list[Prompt]:
    """Return the prompts that nothing was trained on."""
    prompts = written()
    return [prompts[at] for at in halves(len(prompts))[1]]


def table(wanted: Sequence[str], chosen: Sequence[str]) -> str:
    """Return how often prompts of each route were given which one, as a Markdown table."""
    pairs = Counter(zip(wanted, chosen, strict=True))
    lines = ["| is | " + " | ".join(ROUTES) + " | right |", "|---" * (len(ROUTES) + 2) + "|"]
    for route in ROUTES:
        row = [pairs[route, other] for other in ROUTES]
        lines.append(f"| {route} | " + " | ".join(map(str, row)) + f" | {pairs[route, route] / max(sum(row), 1):.0%} |")
    num_right = sum(pairs[route, route] for route in ROUTES)
    return "\n".join([*lines, "", f"{num_right} of {len(wanted)} right, {num_right / len(wanted):.1%}"])


def decided_by(url: str, prompts: Sequence[Prompt]) -> list[str]:
    """Return the routes that the server's model names, asked as by `decide: model`; "" where it names none."""
    chosen = []
    with httpx.Client(timeout=60.0, headers={"content-type": "application/json"}) as client:
        name = client.get(f"{url}/models").raise_for_status().json()["data"][0]["id"]
        for prompt in prompts:
            body = question(prompt.text, model=name, among=ROUTES)
            answer = client.post(f"{url}/chat/completions", content=body).raise_for_status()
            try:
                chosen.append(answer_of(answer.content, ROUTES))
            except ValueError:
                chosen.append("")
    return chosen


def as_json(weights: Weights) -> str:
    """Return what `weights.json` holds: a feature a line."""
    head = json.dumps({"routes": weights.routes, "bias": weights.bias})[:-1]
    lines = (f"{json.dumps(name)}:{json.dumps(row, separators=(',', ':'))}" for name, row in weights.features.items())
    return f'{head}, "features": {{\n' + ",\n".join(lines) + "\n}}\n"


def main(flags: list[str]) -> None:
    match flags:
        case []:
            WEIGHTS.write_text(as_json(final_weights(Settings())), encoding="utf-8")
        case ["--folds"]:
            print(f"{folds(Settings()):.1%} of the training half, five folds")
        case ["--held-out"]:
            prompts = held_out()
            classifier = Classifier.shipped()
            print(table([prompt.route for prompt in prompts], [classifier.route(prompt.text) for prompt in prompts]))
        case ["--held-out", url]:
            prompts = held_out()
            classifier = Classifier.shipped()
            named = decided_by(url.rstrip("/"), prompts)
            chosen = [route or classifier.route(prompt.text) for route, prompt in zip(named, prompts, strict=True)]
            print(table([prompt.route for prompt in prompts], chosen))
            print(f"{named.count('')} of them chosen by the classifier, since the model had named no route")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
