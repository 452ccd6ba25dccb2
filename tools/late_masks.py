"""Measures a plain stream of the demo model next to three requests whose masks take long, against three plain ones.

    python tools/late_masks.py [milliseconds of CPU that each mask takes: 66]

The two arms take turns in one process. Masks burn their time without the interpreter's lock, as llguidance does.
"""

from __future__ import annotations

import hashlib
import sys
import time
from statistics import median

import llguidance

from eyas.base.bundled import DEMO
from eyas.base.settings.config import EngineConfig
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import Request, SamplingParams
from eyas.engine.startup.load import load_engine_parts
from eyas.engine.step.core import EngineCore

ROUNDS = 4
TOKENS = 150
OTHERS = 3
GRAMMAR = "start: /[a-z ]{2000}/"


class CostlyMatcher:
    """An LLMatcher whose masks take `work` iterations of a hash more."""

    def __init__(self, inner: llguidance.LLMatcher, work: int) -> None:
        self._inner = inner
        self._work = work

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def deep_copy(self) -> CostlyMatcher:
        return CostlyMatcher(self._inner.deep_copy(), self._work)

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        hashlib.pbkdf2_hmac("sha256", b"", b"", self._work)
        self._inner.unsafe_compute_mask_ptr(address, size)


def speed(core: EngineCore, tokenizer: Tokenizer, *, is_costly: bool) -> tuple[float, float]:
    """Return tokens a second of the plain stream, and of the three others together."""
    prompt = tuple(tokenizer.encode("Tell me about the sea and its birds."))
    settings = {"grammar": GRAMMAR} if is_costly else {"ignore_eos": True}
    counts = {"plain": 0, "others": 0}

    def add(name: str, seed: int, **params: object) -> None:
        wanted = SamplingParams(max_tokens=1000, seed=seed, **params)
        kind = "plain" if name == "plain" else "others"
        core.add(
            Request(request_id=name, prompt_ids=prompt, params=wanted),
            lambda event: counts.update({kind: counts[kind] + len(event.token_ids)}),
        )

    for i in range(OTHERS):
        add(f"other {i}", i, **settings)
    add("plain", 9, ignore_eos=True)
    while counts["plain"] < 10:
        core.step()
    before, began = dict(counts), time.perf_counter()
    while counts["plain"] < before["plain"] + TOKENS:
        core.step()
    seconds = time.perf_counter() - began
    for name in ("plain", *(f"other {i}" for i in range(OTHERS))):
        core.cancel(name)
    while not core.is_idle:
        core.step()
    return ((counts["plain"] - before["plain"]) / seconds, (counts["others"] - before["others"]) / seconds)


def main() -> None:
    milliseconds = float(sys.argv[1]) if len(sys.argv) > 1 else 66.0
    began = time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 200_000)
    work = int(200_000 * milliseconds / 1e3 / (time.thread_time() - began))
    real = llguidance.LLMatcher
    llguidance.LLMatcher = lambda *args, **kwargs: CostlyMatcher(real(*args, **kwargs), work)
    loaded = load_engine_parts(EngineConfig(model=str(DEMO), concurrency=OTHERS + 1, context=1200, seed=0))
    core = loaded.built.core
    ratios = []
    for _ in range(ROUNDS):
        plain, costly = (speed(core, loaded.tokenizer, is_costly=is_costly) for is_costly in (False, True))
        ratios.append(costly[0] / plain[0])
        print(
            f"next to {OTHERS} plain {plain[0]:6.1f} tok/s; next to {OTHERS} with masks of {milliseconds:g} ms "
            f"{costly[0]:6.1f} tok/s, these together {costly[1]:6.1f} tok/s; ratio {ratios[-1]:.2f}",
            flush=True,
        )
    print(f"median ratio {median(ratios):.2f}")


if __name__ == "__main__":
    main()
