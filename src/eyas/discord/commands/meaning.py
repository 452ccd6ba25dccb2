"""Shows what a bot's file means. No key and no token is in it."""

from __future__ import annotations

from dataclasses import asdict
from urllib.parse import urlsplit

from eyas.base.serving.budgets import in_words
from eyas.discord.settings.schema import Endpoint, Lists, Settings

__all__ = ["meaning"]


def meaning(settings: Settings) -> str:
    """Return lines of names and values."""
    answers, memory, limits, display = settings.answers, settings.memory, settings.limits, settings.display
    access = settings.access
    rows = [
        ("endpoint", _endpoint(settings.endpoint)),
        *(("fallback", f"{one.name}, {_endpoint(one)}") for one in settings.fallbacks),
        ("budgets", in_words(asdict(settings.budgets))),
        ("answers", f"at most {answers.max_tokens} tokens, effort {answers.effort or 'as the model has it'}"),
        ("memory", f"{memory.messages} messages, {memory.tokens} tokens"),
        (
            "edits",
            f"every {display.edit_every_s:g} s, {display.max_chunks} messages of {display.chunk_chars} characters",
        ),
        ("servers", _lists(access.servers)),
        ("channels", _lists(access.channels)),
        ("roles", _lists(access.roles)),
        ("people", _lists(access.people)),
        ("private", "answered" if access.direct_messages else "not answered"),
        ("operators", f"{len(settings.operators.people)} people, {len(settings.operators.roles)} roles"),
        (
            "limits",
            f"{_limit(limits.answers_at_once)} answers at once, {_limit(limits.tokens_a_day)} tokens a day each",
        ),
        ("intent", "asks for Message Content" if settings.message_content else "without Message Content"),
        ("state", str(settings.state)),
        (
            "metrics",
            "none" if settings.metrics.port is None else f"{settings.metrics.host} port {settings.metrics.port}",
        ),
    ]
    return "\n".join(f"{name:<10} {value}" for name, value in rows)


def _endpoint(one: Endpoint) -> str:
    parts = urlsplit(one.base_url)
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    key = ", with a key" if one.api_key is not None else ""
    return f"{shown}, {one.model or 'the first model that it lists'}{key}"


def _lists(lists: Lists) -> str:
    allowed = f"{len(lists.allow)} allowed" if lists.allow else "all"
    return f"{allowed}, {len(lists.deny)} denied" if lists.deny else allowed


def _limit(value: int | None) -> str:
    return "any number of" if value is None else str(value)
