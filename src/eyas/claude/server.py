"""Asks a server what Claude Code must know of it: whether it serves, the model's name, its context, the version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from eyas.base.errors import UserError, nearest
from eyas.base.serving.address import bearer

__all__ = ["START_ONE", "Server", "ask", "connect"]

START_ONE = "eyas serve openai/gpt-oss-20b --context 64k"
TIMEOUT_S = 10.0
CONTEXT_FIELDS = ("max_model_len", "max_input_tokens")  # by vLLM, and by Anthropic
ALIAS = "claude"  # in the id of a model that a server offers to Claude Code


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    url: str
    model: str  # for Claude Code
    context: int  # tokens
    version: str | None  # of eyas; None if it is another server


def connect(url: str, key: str | None) -> httpx.Client:
    """Return a client of the server, which goes there directly, whatever proxy is set. Raises UserError."""
    return httpx.Client(base_url=url, headers=bearer(key), timeout=TIMEOUT_S, trust_env=False)


def ask(url: str, *, key: str | None = None, model: str | None = None) -> Server:
    """Return the facts of the server at `url`; `model` is one of its names, by default its first for Claude Code.

    Raises UserError, one line each: no server there, key refused, model not there, engine down.
    """
    with connect(url, key) as http:
        try:
            answer = http.get("/v1/models")
            entries = _entries(url, answer, has_key=key is not None)
            ready = http.get("/ready")
            version = http.get("/version")
        except httpx.TimeoutException:
            raise UserError(f"the server at {url} does not answer within {TIMEOUT_S:g} s") from None
        except httpx.HTTPError as error:
            why = " ".join(str(error).split()) or type(error).__name__
            raise UserError(
                f"no server answers at {url} ({why}); start one: {START_ONE}, or name another: --url URL"
            ) from None
    if ready.status_code == 503:
        raise UserError(f"the engine of the server at {url} does not serve ({_reason(ready)}); see the server's log")
    name = _name(url, entries, model)
    return Server(url=url, model=name, context=_context(url, name, entries[name]), version=_version(version))


def _entries(url: str, answer: httpx.Response, *, has_key: bool) -> dict[str, dict[str, object]]:
    """Return the models of the server by their ids."""
    if answer.status_code in (401, 403):
        hint = "refuses this API key" if has_key else "wants an API key: --api-key env:NAME"
        raise UserError(f"the server at {url} {hint}")
    try:
        answer.raise_for_status()
        return {str(entry["id"]): dict(entry) for entry in answer.json()["data"]}
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError):
        raise UserError(
            f"{url} does not look like a server of models: GET /v1/models was answered with status "
            f"{answer.status_code}, and no list of models"
        ) from None


def _name(url: str, names: Iterable[str], wanted: str | None) -> str:
    aliases = [name for name in names if ALIAS in name.lower()]
    if wanted is None:
        if not aliases:
            listed = ", ".join(names) or "none"
            raise UserError(
                f"the server at {url} offers no model to Claude Code, by a name with '{ALIAS}' in it; it has {listed}. "
                "For another server with Anthropic's API name one: --model NAME"
            )
        return aliases[0]
    if wanted not in names:
        raise UserError(
            f"the server at {url} has no model '{wanted}'{nearest(wanted, names)}; it has {', '.join(names)}"
        )
    return next((alias for alias in aliases if alias.endswith(f"-{wanted}")), wanted)


def _context(url: str, name: str, entry: dict[str, object]) -> int:
    for field in CONTEXT_FIELDS:
        value = entry.get(field)
        if isinstance(value, int) and value > 0:
            return value
    raise UserError(f"the server at {url} does not say how many tokens of context '{name}' has")


def _version(answer: httpx.Response) -> str | None:
    try:
        return str(answer.json()["version"]) if answer.status_code == 200 else None
    except (ValueError, LookupError, TypeError):
        return None


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, LookupError, TypeError):
        return f"status {answer.status_code}"
