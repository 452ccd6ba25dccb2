"""Sampling parameters and stop strings of a question, with the checkpoint's defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from eyas.base.errors import InvalidRequest
from eyas.base.types import SamplingParams
from eyas.gateway.turn.stops import Stops

__all__ = ["CONVERTED", "PLAIN", "checked_stops", "sampling_params"]

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 256

TOKEN_FIELDS = {"stop_token_ids", "logit_bias", "logprobs", "prompt_logprobs", "allowed_token_ids", "bad_words"}
CONVERTED = {"max_tokens", "grammar", *TOKEN_FIELDS}
# Fields of SamplingParams that are passed on unchanged, from the request or else from generation_config.json.
PLAIN = tuple(item.name for item in dataclasses.fields(SamplingParams) if item.name not in CONVERTED)


def sampling_params(
    given: Mapping[str, Any], defaults: Mapping[str, float], *, max_tokens: int | None, grammar: str | None = None
) -> SamplingParams:
    """Return parameters that say nothing in token ids; SamplingParams itself checks ranges. Raises InvalidRequest.

    `given` is what a request says, by the names of SamplingParams; other names are ignored, None counts as not given.
    """
    found: dict[str, Any] = {name: defaults[name] for name in PLAIN if name in defaults}
    found |= {name: value for name in PLAIN if (value := given.get(name)) is not None}
    if "top_k" in found:
        found["top_k"] = int(found["top_k"])
    return SamplingParams(max_tokens=max_tokens, grammar=grammar, **found)


def checked_stops(strings: Sequence[str], *, include: bool = False, param: str) -> Stops:
    """Return stop strings from the field `param`. Raises InvalidRequest if they are too many, too long or empty."""
    if len(strings) > MAX_STOP_STRINGS or not all(0 < len(string) <= MAX_STOP_CHARS for string in strings):
        raise InvalidRequest(
            f"{param} takes at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARS} characters", param=param
        )
    return Stops(strings=tuple(strings), include=include)
