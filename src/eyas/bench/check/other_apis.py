"""Checks of OpenAI's Responses API, where it is offered."""

from __future__ import annotations

from typing import Any

from eyas.bench.check.asking import Endpoint
from eyas.bench.check.finding import Refused, Result, broken, missing, ok

__all__ = ["NOT_OFFERED", "responses"]

PATH = "/v1/responses"
NOT_OFFERED = (404, 405, 501)


async def responses(endpoint: Endpoint) -> Result:
    body = {"model": endpoint.model, "input": "Say hello.", "max_output_tokens": 1024}
    try:
        value = await endpoint.post(PATH, body)
    except Refused as error:
        if error.status not in NOT_OFFERED:
            raise
        return missing(f"{PATH} is not offered")
    wrong = _wrong(value)
    return broken(wrong) if wrong else ok("answers, and counts its tokens")


def _wrong(value: Any) -> str | None:
    if not isinstance(value, dict) or value.get("object") != "response" or not isinstance(value.get("output"), list):
        return "no response came back"
    if value.get("status") not in ("completed", "incomplete"):
        return f"its status is {value.get('status')!r}"
    kinds = {item.get("type") for item in value["output"] if isinstance(item, dict)}
    if not kinds & {"message", "reasoning"}:
        return "its output has neither a message nor reasoning"
    usage = value.get("usage")
    if not isinstance(usage, dict) or not usage.get("input_tokens") or not usage.get("output_tokens"):
        return "it does not count its tokens"
    return None
