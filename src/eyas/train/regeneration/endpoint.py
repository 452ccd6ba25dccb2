"""Asks an OpenAI Chat Completions endpoint for answers, and waits for one that is busy or starting again.

The API key is in a header and nowhere else: texts from the endpoint are shown without it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from eyas.base.errors import UserError
from eyas.base.serving.retry_after import retry_after_s
from eyas.train.regeneration.calls import read_call
from eyas.train.regeneration.prompts import Message, Prompt
from eyas.train.regeneration.turns import Answer, Refused

__all__ = ["Endpoint", "EndpointError", "Sampling", "base_url"]

CONNECT_S = 10.0
FIRST_DELAY_S, MAX_DELAY_S = 0.5, 30.0  # between tries; twice as long each time
MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 0.1, 60.0
NOTE_S = 30.0  # between two notes that requests wait
MAX_DROPS = 4  # tries of a request that the endpoint drops while it answers others
BUSY = (429, 502, 503, 504)  # a full queue, a server that is loading, a proxy without its server
DENIED = (401, 403)
WHOLE, CUT = ("stop", "tool_calls", "function_call"), "length"
SHOWN_CHARS = 200


class EndpointError(UserError):
    """The endpoint serves no request any more, or none of this key; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Fields of every request; None leaves one to the endpoint."""

    model: str
    temperature: float
    max_tokens: int | None
    effort: str | None
    seed: int | None


def base_url(text: str) -> str:
    """Return a base URL such as `http://127.0.0.1:8000/v1`. Raises ValueError if `text` is none, without quoting it."""
    url = text.strip().rstrip("/").removesuffix("/chat/completions")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of brackets and ports
        is_good = False
    if not is_good or set("?#@ ") & set(url):  # a user, password or query could be a key
        raise ValueError("wants a URL such as http://127.0.0.1:8000/v1, without user, password or query")
    return url


class Endpoint:
    """A connection pool of one endpoint.

    `patience` is the time in seconds for which it may answer nothing at all before it counts as dead, `timeout` the
    time for one answer. `on_wait` is called with the reason when a request must wait, now and then.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None,
        concurrency: int,
        patience: float,
        timeout: float,
        on_wait: Callable[[str], None] = lambda reason: None,
    ) -> None:
        if key is not None and not re.fullmatch(r"[!-~]+", key):
            raise EndpointError("the API key must be printable ASCII without spaces, and not empty")
        self._url, self._key, self._patience, self._on_wait = url, key, patience, on_wait
        self._last_success = float("-inf")  # time.monotonic()
        self._last_note = float("-inf")
        self._http = httpx.AsyncClient(
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(timeout, connect=CONNECT_S, pool=None),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            trust_env=False,
        )

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def model(self, wanted: str) -> str:
        """Return `wanted`, or if it is empty the first name in the endpoint's list. Raises EndpointError.

        A wrong address or key ends here, at once; a list that an endpoint lacks is missed only if no name is given.
        """
        try:
            response = await self._http.get(f"{self._url}/models", timeout=CONNECT_S)
        except httpx.HTTPError as error:
            raise EndpointError(f"no server answers at {self._url} ({self._shown(_why(error))})") from None
        if response.status_code in DENIED or not wanted:
            self._check_access(response)
        if wanted:
            return wanted
        try:
            return str(response.json()["data"][0]["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise EndpointError(
                f"{self._url}/models was answered with status {response.status_code} and no list of models; "
                "name the model: --model NAME, and see that the URL ends in /v1"
            ) from None

    async def ask(self, prompt: Prompt, sampling: Sampling, messages: Sequence[Message], number: int) -> Answer:
        """Return answer `number` of a chat. Raises Refused and EndpointError."""
        response = await self._post(_body(prompt, sampling, messages, number))
        try:
            return _answer(response.json(), number)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            text = str(error) if type(error) is ValueError else type(error).__name__
            raise Refused(self._shown(f"the answer is no chat completion: {text}")) from None

    async def _post(self, body: dict[str, Any]) -> httpx.Response:
        """Return a response with status 200, however often that must be tried."""
        content = json.dumps(body).encode()
        began, delay, drops = None, FIRST_DELAY_S, 0
        while True:
            pause = delay * random.uniform(0.5, 1)
            try:
                response = await self._http.post(
                    f"{self._url}/chat/completions", content=content, headers={"content-type": "application/json"}
                )
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                why = _why(error)
            except httpx.TransportError as error:
                why, drops = _why(error), drops + 1
            else:
                if response.status_code == 200:
                    self._last_success = time.monotonic()
                    return response
                self._check_access(response)
                why = f"status {response.status_code}: {_reason(response)}"
                if response.status_code == 500:
                    drops += 1
                elif response.status_code not in BUSY:
                    raise Refused(self._shown(why))
                if (asked := retry_after_s(response.headers)) is not None:
                    pause = min(max(asked, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
            now = time.monotonic()
            began = now if began is None else began
            if drops >= MAX_DROPS and self._last_success > began:
                raise Refused(self._shown(f"tried {drops} times while others were answered: {why}"))
            left = max(began, self._last_success) + self._patience - now
            if left <= 0:
                raise EndpointError(f"{self._url} has answered nothing for {self._patience:g} s ({self._shown(why)})")
            if now - self._last_note >= NOTE_S:
                self._last_note = now
                self._on_wait(self._shown(why))
            await asyncio.sleep(min(left, pause))
            delay = min(2 * delay, MAX_DELAY_S)

    def _check_access(self, response: httpx.Response) -> None:
        if response.status_code in DENIED:
            hint = "wants an API key: --api-key env:NAME" if self._key is None else "refuses this API key"
            raise EndpointError(f"{self._url} {hint} (status {response.status_code})")
        if response.status_code == 404 or response.is_redirect:
            raise EndpointError(
                f"{self._url} was answered with status {response.status_code} ({self._shown(_reason(response))}); "
                "check --model, and that the URL ends in /v1"
            )

    def _shown(self, text: str) -> str:
        """Return one printable line, shortened, without the key."""
        if self._key:
            text = text.replace(self._key, "[API key]")
        text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
        return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + " [...]"


def _body(prompt: Prompt, sampling: Sampling, messages: Sequence[Message], number: int) -> dict[str, Any]:
    effort = sampling.effort or prompt.effort
    optional = {
        "tools": prompt.tools,
        "reasoning_effort": effort,
        # The same for llama.cpp, which reads the field itself from build b10434 on only (its pull request 26941).
        "chat_template_kwargs": None if effort is None else {"reasoning_effort": effort},
        "max_tokens": sampling.max_tokens,
        "seed": None if sampling.seed is None else _seed(sampling.seed, prompt.line, number),
    }
    return {
        "model": sampling.model,
        "messages": [_with_both_names(message) for message in messages],
        "temperature": sampling.temperature,
        "top_p": 1,  # else llama.cpp takes 0.95
    } | {name: value for name, value in optional.items() if value is not None}


def _with_both_names(message: Message) -> Message:
    """Add reasoning under vLLM's name to a message that has it under SGLang's and llama.cpp's."""
    text = message.get("reasoning_content")
    return message if text is None else message | {"reasoning": text}


def _seed(seed: int, line: int, number: int) -> int:
    """Return a seed of 31 bits, which every server takes, of its own for each answer."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{line}:{number}".encode()).digest()[:4], "big") >> 1


def _answer(value: Any, number: int) -> Answer:
    """Read a chat completion. Raises ValueError and what else a wrong type brings."""
    choice = value["choices"][0]
    received, finish = choice["message"], choice["finish_reason"]
    if finish != CUT and finish not in WHOLE:
        raise ValueError(f"finish_reason {finish!r}")
    content = received.get("content") or None
    reasoning = received.get("reasoning_content") or received.get("reasoning")
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = [call for call in map(read_call, received.get("tool_calls") or []) if call is not None]
    if len(calls) != len(received.get("tool_calls") or []):
        raise ValueError("a tool call without name or arguments")
    if not all(isinstance(text, str | None) for text in (content, reasoning)):
        raise ValueError("content that is no text")
    calls = [replace(call, id=call.id or f"call_{number}_{index}") for index, call in enumerate(calls)]
    if calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _text(call.arguments)}}
            for call in calls
        ]
    json.dumps(message, ensure_ascii=False).encode()  # half a surrogate pair has no UTF-8: a ValueError
    usage = value.get("usage") or {}
    return Answer(
        message=message,
        calls=tuple(calls),
        is_whole=finish != CUT and bool(calls or content),
        num_prompt=int(usage.get("prompt_tokens") or 0),
        num_tokens=int(usage.get("completion_tokens") or 0),
    )


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _why(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


def _reason(response: httpx.Response) -> str:
    """Return the endpoint's own words: OpenAI's error, vLLM's older one, FastAPI's, or the text as it is."""
    try:
        value = response.json()
        found = value.get("error", value.get("message", value.get("detail")))
        text = found["message"] if isinstance(found, dict) else found
        return text if isinstance(text, str) else response.text
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return response.text or "no text"
