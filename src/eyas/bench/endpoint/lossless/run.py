"""Asks two arms the same questions, greedily and with seeds, until enough tokens are compared.

Whole answers, not streams: only they carry log-probabilities. Both arms are asked at the same time; where both are one
server, the second of them may find the prompt in its cache. No engine but ours promises the same tokens for a seed:
vLLM and SGLang draw otherwise where they accept drafts (rejection sampling); llama-server draws a token a position, as
we do, but a rounding may decide a draw. Their seeded answers are compared and not judged.

Speculation cannot be switched in a request by any engine (vLLM#55412, SGLang#30264 and llama.cpp#23052 are closed, and
llama.cpp 0.5.0 ignores `speculative.n_max`), so that two endpoints are the rule; two arms with other fields
(`--field ARM:NAME=JSON`) are for those who have patched theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import httpx
from msgspec.structs import replace

from eyas.base.errors import UserError
from eyas.bench.endpoint.lossless.replies import Reply, divergence, num_compared, reply_of
from eyas.bench.endpoint.lossless.summary import Comparison, Losslessness
from eyas.bench.endpoint.prompts.prompt import Prompt, salted
from eyas.bench.endpoint.target import Arm, Endpoint
from eyas.client.refusals import INVALID_JSON

__all__ = ["NEAR_TIE", "TOKENS", "compare"]

NEAR_TIE = 0.25  # logits in bf16 from 16 to 32 lie 0.125 apart: one step of either token
TOKENS = 20_000
TOP = 5
TEMPERATURE = 1.0
MAX_FAILURES = 10  # in a row: then it ends
MAX_SHOWN = 200
# Ways to ask for tokens, until the endpoint takes one.
WAYS: tuple[dict[str, Any], ...] = (
    {"logprobs": True, "top_logprobs": TOP, "return_token_ids": True, "return_tokens_as_token_ids": True},
    {"logprobs": True, "top_logprobs": TOP},
    {},
)
KNOW_IDS = ("eyas", "vllm")  # other engines ignore or refuse `return_token_ids` in a chat


class _Side:
    """One arm, asked for whole answers inside one event loop."""

    def __init__(
        self, arm: Arm, endpoint: Endpoint, timeout_s: float, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        headers = {} if arm.key is None else {"Authorization": f"Bearer {arm.key}"}
        self.client = httpx.AsyncClient(
            base_url=endpoint.root, headers=headers, timeout=timeout_s, trust_env=False, transport=transport
        )
        self._arm, self._endpoint = arm, endpoint
        self.name, self.is_ours = arm.name, endpoint.engine == "eyas"
        self._way = WAYS[0 if endpoint.engine in KNOW_IDS else 1]

    async def try_out(self, prompt: Prompt) -> None:
        """Find out how tokens may be asked for. Raises UserError where no answer comes at all."""
        ways = WAYS[WAYS.index(self._way) :]
        for self._way in ways:
            response = await self._send(prompt, None, 4)
            if response.status_code == 200:
                return
            if response.status_code not in (400, 422):
                break
        raise self._refused(response)

    async def reply(self, prompt: Prompt, seed: int | None, max_tokens: int) -> Reply:
        """Return an answer. Raises UserError for one that failed."""
        response = await self._send(prompt, seed, max_tokens)
        try:
            if response.status_code == 200:
                return reply_of(response.content)
        except (*INVALID_JSON, ValueError) as error:
            raise UserError(f"{self._arm.name}: its answer is no chat completion ({error})") from None
        raise self._refused(response)

    def _refused(self, response: httpx.Response) -> UserError:
        said = " ".join(response.text.split())[:MAX_SHOWN]
        return UserError(f"{self._arm.name}: {self._endpoint.root} answers {response.status_code} ({said})")

    async def _send(self, prompt: Prompt, seed: int | None, max_tokens: int) -> httpx.Response:
        drawn = {"temperature": 0} if seed is None else {"temperature": TEMPERATURE, "seed": seed}
        body = {"model": self._endpoint.model, "messages": prompt.messages, "max_tokens": max_tokens, **drawn}
        if prompt.tools:
            body["tools"] = prompt.tools
        try:
            return await self.client.post("/v1/chat/completions", json={**body, **self._way, **self._arm.fields})
        except httpx.HTTPError as error:
            why = " ".join(str(error).split())[:MAX_SHOWN] or type(error).__name__
            raise UserError(f"{self._arm.name}: no answer from {self._endpoint.root} ({why})") from None


async def compare(
    base: tuple[Arm, Endpoint],
    other: tuple[Arm, Endpoint],
    prompts: Sequence[Prompt],
    *,
    tokens: int = TOKENS,
    max_tokens: int = 256,
    near_tie: float = NEAR_TIE,
    concurrency: int = 4,
    timeout_s: float = 600.0,
    on_change: Callable[[Losslessness], None] = lambda found: None,
    transports: tuple[httpx.AsyncBaseTransport | None, httpx.AsyncBaseTransport | None] = (None, None),
) -> Losslessness:
    """Compare answers until `tokens` count, of those that can show a defect; what was found so far goes to `on_change`.

    Seeded answers do so only where both arms are ours. Raises UserError where an endpoint takes no request, and for
    prompts of token ids, which no chat has.
    """
    if any(prompt.token_ids for prompt in prompts):
        raise UserError("--lossless compares chats; give prompts of text")
    sides = [_Side(*pair, timeout_s, transport) for pair, transport in zip((base, other), transports, strict=True)]
    run = _Run(sides[0], sides[1], prompts, tokens, max_tokens, near_tie, on_change)
    try:
        await asyncio.gather(*(side.try_out(prompts[0]) for side in sides))
        await asyncio.gather(*(run.work() for _ in range(concurrency)))
    finally:
        for side in sides:
            await side.client.aclose()
    return run.found


class _Run:
    """The comparison as it goes on; `work` may run several times at once."""

    def __init__(
        self,
        base: _Side,
        other: _Side,
        prompts: Sequence[Prompt],
        tokens: int,
        max_tokens: int,
        near_tie: float,
        on_change: Callable[[Losslessness], None],
    ) -> None:
        self._base, self._other, self._tokens, self._max_tokens = base, other, tokens, max_tokens
        self._on_change = on_change
        self._todo, self._num_failures = _questions(prompts), 0
        self._draws_otherwise = not (base.is_ours and other.is_ours)
        self.found = Losslessness(
            base=base.name,
            other=other.name,
            near_tie=near_tie,
            greedy=Comparison(sampling="greedy"),
            seeded=Comparison(sampling="seeded", is_judged=not self._draws_otherwise),
        )

    async def work(self) -> None:
        """Ask and compare until it is enough, or too much has failed in a row."""
        while not self.found.ended and self._num_judged() < self._tokens:
            prompt, seed = next(self._todo)
            try:
                replies = await asyncio.gather(
                    self._base.reply(prompt, seed, self._max_tokens), self._other.reply(prompt, seed, self._max_tokens)
                )
            except UserError as error:
                self._fail(seed, str(error))
            else:
                self._add(*replies, prompt.id, seed)
            self._on_change(self.found)

    def _num_judged(self) -> int:
        return sum(one.num_tokens for one in (self.found.greedy, self.found.seeded) if one.is_judged)

    def _fail(self, seed: int | None, why: str) -> None:
        before = self._comparison(seed)
        self._keep(replace(before, num_failed=before.num_failed + 1))
        self._num_failures += 1
        if self._num_failures >= MAX_FAILURES:
            self.found = replace(self.found, ended=why)

    def _add(self, base: Reply, other: Reply, prompt: str, seed: int | None) -> None:
        is_drawn = seed is not None and self._draws_otherwise
        near_tie, before = self.found.near_tie, self._comparison(seed)
        found = divergence(base, other, prompt=prompt, seed=seed, near_tie=near_tie, draws_otherwise=is_drawn)
        self._num_failures = 0
        self._keep(
            replace(
                before,
                num_answers=before.num_answers + 1,
                num_identical=before.num_identical + (found is None),
                num_tokens=before.num_tokens + num_compared(base, other, found),
                divergences=before.divergences if found is None else (*before.divergences, found),
            )
        )

    def _comparison(self, seed: int | None) -> Comparison:
        return self.found.greedy if seed is None else self.found.seeded

    def _keep(self, comparison: Comparison) -> None:
        self.found = replace(self.found, **{comparison.sampling: comparison})


def _questions(prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, int | None]]:
    """Yield each prompt greedily and with a seed, without end: after the first round with another beginning each."""
    for number in count(1):
        for prompt in prompts:
            asked = prompt if number == 1 else salted(prompt, "lossless", number)
            yield asked, None
            yield asked, number
