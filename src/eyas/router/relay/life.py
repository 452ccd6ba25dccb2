"""Finds out whether a backend still works that shows nothing: a whole answer has no progress to be seen."""

from __future__ import annotations

import asyncio

import msgspec

from eyas.base.serving.engines import EngineName
from eyas.router.upstream.errors import UpstreamError
from eyas.router.upstream.upstream import Upstream

__all__ = ["short_question", "until_dead"]

CHECK_S = 30.0
PATIENCE_S = 120.0  # where the stall has no budget
MAX_LOST = 2  # checks in a row that find no answer at once; a single one may be an accident
# A short request is answered beside long ones, and waits for none.
BATCHING: tuple[EngineName, ...] = ("eyas", "sglang", "tensorrt-llm", "vllm")
CHAT = "/v1/chat/completions"


def short_question(engine: EngineName | None, model: str) -> bytes | None:
    """Return a request for one token, by which a stuck engine behind a working HTTP server shows.

    None where it could wait for a long answer: llama-server and Ollama answer as many at once as they have slots.
    """
    if engine not in BATCHING:
        return None
    messages = [{"role": "user", "content": "1"}]
    return msgspec.json.encode({"model": model, "messages": messages, "max_tokens": 1})


async def until_dead(upstream: Upstream, backend: str, patience_s: float | None, question: bytes | None) -> str:
    """Return what is wrong when a backend does not answer anything else either within `patience_s`.

    It is asked for its models, which a stopped process does not tell, and whenever `patience_s` have passed the
    `question`, to which any answer will do.
    """
    patience_s = PATIENCE_S if patience_s is None else patience_s
    loop, num_lost = asyncio.get_running_loop(), 0
    question_at = loop.time() + patience_s
    while True:
        await asyncio.sleep(CHECK_S)
        try:
            what = "its list of models"
            async with upstream.send(backend, "GET", "/v1/models", timeout_s=patience_s) as reply:
                await reply.read()
            if question is not None and loop.time() >= question_at:
                what = "a request for one token"
                async with upstream.send(backend, "POST", CHAT, body=question, timeout_s=patience_s) as reply:
                    await reply.read()
                question_at = loop.time() + patience_s
            num_lost = 0
        except UpstreamError as error:
            num_lost += 1
            if error.kind == "budget" or num_lost == MAX_LOST:
                return f"no answer yet, and none to {what}: {error.detail}"
