"""Limits the length of prompts: texts are counted while they are encoded, and only up to the limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from eyas.base.errors import EyasError, InvalidRequest, TooManyTokens
from eyas.base.harmony.tools import FunctionTool
from eyas.base.tokens.tokenizer import TextCodec
from eyas.gateway.http.errors import Refused
from eyas.gateway.server.context import Context

__all__ = ["MAX_TOKENS", "CountingCodec", "PromptTooLong", "check_length", "counting_codec", "prompt_codec"]

MAX_TOKENS = 1 << 19  # of all prompts of a request, and of a text for /tokenize
COUNTED_ON = 4096  # tokens beyond the context, so that the error for a slightly longer prompt has the exact number


class CountingCodec:
    """A TextCodec for the texts of one prompt, which raises `error(number)` as soon as they have more than `limit` ids.

    The number is a lower bound. Ids taken from `special` are not counted, those from `special_id` are.
    """

    def __init__(self, codec: TextCodec, limit: int, *, error: Callable[[int], EyasError], param: str) -> None:
        self._codec = codec
        self._limit = limit
        self._error = error
        self._param = param
        self._num_ids = 0
        self.token_bytes = codec.token_bytes

        self.longest = codec.longest

    @property
    def special(self) -> Mapping[str, int]:
        return self._codec.special

    def expect(self, num_chars: int) -> None:
        """Raise the error if no text of this length can fit."""
        if (at_least := self._num_ids + math.ceil(num_chars / self.longest)) > self._limit:
            raise self._error(at_least)

    def special_id(self, name: str) -> int:
        """Count a special token, and return its id."""
        self.expect(1)
        self._num_ids += 1
        return self._codec.special[name]

    def encode(self, text: str) -> list[int]:
        return self.encode_within(text, self._limit - self._num_ids)

    def encode_within(self, text: str, limit: int) -> list[int]:
        try:
            ids = self._codec.encode_within(text, min(limit, self._limit - self._num_ids))
        except TooManyTokens as error:
            raise self._error(self._num_ids + error.at_least) from error
        except InvalidRequest as error:
            raise InvalidRequest(f"'{self._param}': {error}", param=self._param) from error
        self._num_ids += len(ids)
        return ids


class PromptTooLong(Refused):
    """A prompt in the field `param` that leaves no room for an answer: `num_prompt` tokens, or at least that number."""

    def __init__(self, num_prompt: int, *, context: int, param: str, is_exact: bool = True) -> None:
        number = str(num_prompt) if is_exact else f"at least {num_prompt}"
        super().__init__(
            f"This model's maximum context length is {context} tokens, and the request has {number} tokens in its "
            f"{param}. Please shorten it; an answer needs at least one token more",
            param=param,
            code="context_length_exceeded",
        )
        self.num_prompt = num_prompt
        self.context = context


def prompt_codec(context: Context, param: str, tools: Sequence[FunctionTool] = ()) -> CountingCodec:
    """Return a codec for a prompt that declares `tools`.

    It raises PromptTooLong, as `check_length` does for the whole prompt.
    """
    limit = context.engine.info.context

    def error(number: int) -> PromptTooLong:
        return PromptTooLong(number, context=limit, param=param, is_exact=False)

    codec = CountingCodec(context.codec, limit + COUNTED_ON, error=error, param=param)
    codec.expect(sum(len(tool.description) for tool in tools))
    return codec


def check_length(context: Context, num_prompt: int, param: str) -> None:
    """Raises PromptTooLong for a prompt that leaves no room for an answer."""
    if num_prompt >= (limit := context.engine.info.context):
        raise PromptTooLong(num_prompt, context=limit, param=param)


def counting_codec(context: Context, param: str) -> CountingCodec:
    """Return a codec for texts that are counted and may be longer than the context. It raises InvalidRequest."""
    error = lambda number: InvalidRequest(  # noqa: E731
        f"'{param}' has at least {number} tokens, and the limit of one request is {MAX_TOKENS}; send it in parts",
        param=param,
    )
    return CountingCodec(context.codec, MAX_TOKENS, error=error, param=param)
