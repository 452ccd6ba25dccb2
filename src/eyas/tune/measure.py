"""Measures windows on engines that are up: prompts of a length, load, acceptance. Starts no engine."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import httpx
import msgspec
from msgspec.structs import replace

from eyas.base.errors import UserError
from eyas.bench.endpoint.acceptance import side_of
from eyas.bench.endpoint.load.pace import Limits, Pace
from eyas.bench.endpoint.load.session import OUT_OF_TIME, Settings, Side, Step, run_to_end
from eyas.bench.endpoint.load.window import INTERRUPTED
from eyas.bench.endpoint.prompts.builtin import builtin
from eyas.bench.endpoint.prompts.prompt import Prompt
from eyas.bench.endpoint.records import Load, Window
from eyas.bench.endpoint.target import Arm, identify
from eyas.client.refusals import INVALID_JSON
from eyas.tune.schedule import Cell

__all__ = ["Measurer", "load_of", "prompts_for"]

CHAT_CONTEXT = 256  # tokens up to which prompts are short questions, as they are
TRIAL_CHARS = 1000  # fit into a context that takes prompts of more than CHAT_CONTEXT tokens
TIMEOUT_S = 120.0
MAX_SHOWN = 200  # characters of an answer
QUESTION = "\n\nSay in a few sentences what the text above is about."


class Measurer:
    """Measures arms of one sweep. `run` goes into the prompts' salts; `steady_s` is the length of a steady part."""

    def __init__(self, *, run: str, steady_s: float, warm_up_s: float, max_tokens: int) -> None:
        self._run, self._max_tokens = run, max_tokens
        self._limits = Limits(warm_up_s=warm_up_s, duration_s=steady_s)
        self._chars: dict[str, float] = {}  # per token, by model

    def windows(
        self, arms: Sequence[tuple[str, str]], cell: Cell, turn: int, *, within_s: float = math.inf
    ) -> list[Window]:
        """Measure one window of each (name, URL), one after the other, with the same prompts.

        What has not ended after `within_s` is left out. Raises UserError where an endpoint does not answer, and
        KeyboardInterrupt after a Ctrl-C, which ends the window.
        """
        ends = time.monotonic() + within_s
        sides = [side_of(arm, identify(arm)) for arm in (Arm(name=name, url=url) for name, url in arms)]
        try:
            chars = self._chars_per_token(sides[0], within_s) if cell.context > CHAT_CONTEXT else 0.0
        except TimeoutError:
            return []
        prompts = prompts_for(cell.context, chars, seed=turn)
        settings = Settings(
            loads=(load_of(cell, self._max_tokens),), prompts=("tune",), limits=self._limits, turns=1, seed=turn,
            timeout_s=TIMEOUT_S,
        )  # fmt: skip
        found: list[Window] = []
        run = f"{self._run}/{cell.context}/{turn}"
        left_s = ends - time.monotonic()
        why = run_to_end(sides, prompts, settings, run=run, keep=found.append, watcher=_Silent(), within_s=left_s)
        if why == INTERRUPTED:
            raise KeyboardInterrupt
        if why and why != OUT_OF_TIME:
            raise UserError(why)
        return [replace(window, turn=turn) for window in found]

    def _chars_per_token(self, side: Side, within_s: float) -> float:
        """Ask the endpoint how many tokens a text has: nothing here knows its tokenizer.

        Raises UserError, and TimeoutError where only the time was too short.
        """
        model = side.endpoint.model
        if model not in self._chars:
            text = builtin("documents")[0].messages[0]["content"][:TRIAL_CHARS]
            body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": text}]}
            try:
                with httpx.Client(timeout=max(0.1, min(TIMEOUT_S, within_s)), trust_env=False) as client:
                    answer = client.post(f"{side.endpoint.root}/v1/chat/completions", json=body)
                num_tokens = msgspec.json.decode(answer.content)["usage"]["prompt_tokens"]
            except httpx.HTTPError as error:
                if isinstance(error, httpx.TimeoutException) and within_s < TIMEOUT_S:
                    raise TimeoutError from None
                raise UserError(f"{side.arm.name} does not answer ({error or type(error).__name__})") from None
            except (*INVALID_JSON, LookupError, TypeError):
                said = f"status {answer.status_code}: {' '.join(answer.text.split())[:MAX_SHOWN]}"
                raise UserError(f"{side.arm.name} does not say how many tokens a prompt has ({said})") from None
            self._chars[model] = len(text) / num_tokens
        return self._chars[model]


def load_of(cell: Cell, max_tokens: int) -> Load:
    """Return the load of a cell: answers end where the model ends them."""
    return Load(concurrency=cell.concurrency, mode="natural", max_tokens=max_tokens)


def prompts_for(context: int, chars_per_token: float, *, seed: int) -> list[Prompt]:
    """Return prompts of about `context` tokens: questions as they are, or parts of documents and a question on them."""
    if context <= CHAT_CONTEXT:
        return builtin("chat", seed)
    texts = [str(prompt.messages[0]["content"]) for prompt in builtin("documents", seed)]
    wanted = max(int(context * chars_per_token) - len(QUESTION), 1)
    prompts = []
    for number in range(len(texts)):
        rotated = "\n\n".join([*texts[number:], *texts[:number]])
        content = rotated[:wanted] + QUESTION
        messages = ({"role": "user", "content": content},)
        prompts.append(Prompt(id=f"documents-{context}/{number + 1}", category="documents", messages=messages))
    return prompts


class _Silent:
    """Watches a run and says nothing: the sweep has lines of its own."""

    def begins(self, step: Step, number: int, total: int) -> None: ...
    def goes(self, pace: Pace) -> None: ...
    def ends(self, window: Window) -> None: ...
