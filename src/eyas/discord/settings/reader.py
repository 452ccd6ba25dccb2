"""Reads the bot's file: strictly, and to its end, so that all that is wrong is said at once."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from eyas.base.errors import UserError
from eyas.base.serving.budgets import Budgets
from eyas.base.settings import values
from eyas.base.settings.strict_yaml import read_yaml
from eyas.base.settings.values import Problems, Section
from eyas.discord.settings.fields import read_section
from eyas.discord.settings.schema import TOKEN_ENV, Endpoint, Settings

__all__ = ["read", "token"]

ENDPOINT = ("base_url", "api_key_env", "model")
SECTIONS: dict[str, Any] = {
    item.name: item.default_factory for item in fields(Settings) if item.default_factory not in (MISSING, Budgets)
}
TOP = ("endpoint", "fallbacks", "budgets", "state", "token_env", "message_content", *SECTIONS)
TOKEN = re.compile(r"[\w-]{23,30}\.[\w-]{6,7}\.[\w-]{27,}", re.ASCII)  # the form of a bot's token
FIRST = "endpoint"
PORTAL = "https://discord.com/developers/applications (Bot, Reset Token)"


def read(path: Path, environ: Mapping[str, str]) -> Settings:
    """Return the settings of a file. Raises UserError that names all that is wrong with it, with its places.

    API keys come from the variables that the file names. Whether the token is there is not asked here: see `token`.
    """
    content = read_yaml(path, hint="; examples/discord/bot.yaml shows one")
    problems = Problems()
    top = Section(_without_tokens(content, "", problems), "", TOP, problems)
    sections = {name: read_section(cls, top.get(name), name, problems) for name, cls in SECTIONS.items()}
    first = _endpoint(FIRST, FIRST, top.get("endpoint"), environ, problems)
    settings = Settings(
        endpoint=first,
        fallbacks=tuple(
            _endpoint(name, f"fallbacks.{name}", entry, environ, problems) for name, entry in top.entries("fallbacks")
        ),
        state=top.read("state", lambda value: _path(value, path), path.with_suffix(".sqlite")),
        token_env=top.read("token_env", _variable, TOKEN_ENV),
        message_content=top.read("message_content", values.true_or_false, False),
        budgets=Budgets().with_spans(values.spans(top.get("budgets"), "budgets", problems)),
        **sections,
    )
    _check(settings, problems)
    if problems.texts:
        raise UserError(f"{path}:\n" + "\n".join(f"  {line}" for line in problems.texts))
    return settings


def token(settings: Settings, environ: Mapping[str, str]) -> str:
    """Return the bot's token. Raises UserError without one, or for one that cannot be right."""
    name = settings.token_env
    found = environ.get(name, "").strip()
    if not found:
        raise UserError(f"the environment variable {name} is not set; it holds the bot's token, from {PORTAL}")
    if not values.KEY.fullmatch(found):
        raise UserError(f"the environment variable {name} holds no token: it has a blank or a sign that is not ASCII")
    return found


def _endpoint(name: str, where: str, content: Any, environ: Mapping[str, str], problems: Problems) -> Endpoint:
    if where != FIRST:
        try:
            values.name(name, "fallback")
        except ValueError as error:
            problems.add(where, str(error))
        if name == FIRST:
            problems.add(where, f"has the name of the first one; give it another than {FIRST}")
    section = Section(content, where, ENDPOINT, problems)
    if "base_url" not in section:
        problems.add(where, "wants a base_url: that of a router or server, such as http://127.0.0.1:8100")
    return Endpoint(
        name=name,
        base_url=section.read("base_url", values.url, ""),
        api_key=section.read("api_key_env", lambda value: _key(value, environ), None),
        model=section.read("model", values.text, None),
    )


def _key(value: Any, environ: Mapping[str, str]) -> str:
    name = _variable(value)
    found = environ.get(name, "")
    if not found:
        raise ValueError(f"names the environment variable {name}, which is not set")
    if not values.KEY.fullmatch(found):
        raise ValueError(f"names the environment variable {name}, whose value has a blank or a sign that is not ASCII")
    return found


def _variable(value: Any) -> str:
    """Read the name of an environment variable. What is none may be a key or token, and is not quoted."""
    if not isinstance(value, str) or not values.VARIABLE.fullmatch(value) or len(value) > 64:
        raise ValueError("wants the name of an environment variable, not what is in it")
    return value


def _path(value: Any, file: Path) -> Path:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"wants the path of a file, such as bot.sqlite, got {reprlib.repr(value)}")
    return file.parent / Path(value).expanduser()


def _without_tokens(content: Any, where: str, problems: Problems) -> Any:
    """Return the file without what may be a bot's token, which becomes a problem and is quoted nowhere."""
    if isinstance(content, list):
        kept = [_without_tokens(value, where, problems) for value in content]
        return [value for value in kept if value is not None]
    if isinstance(content, str) and TOKEN.search(content):
        _add_token(where, problems)
        return None
    if not isinstance(content, dict):
        return content
    found = {}
    for key, value in content.items():
        if str(key) == "token" or TOKEN.search(str(key)):
            _add_token(where, problems)
        else:
            found[key] = _without_tokens(value, f"{where}.{key}".lstrip("."), problems)
    return found


def _add_token(where: str, problems: Problems) -> None:
    text = f"holds a token. Take it out, make a new one at {PORTAL}, and set it as {TOKEN_ENV}"
    problems.add(where or "the file", text)


def _check(settings: Settings, problems: Problems) -> None:
    """Add what is wrong between values."""
    for name in ("servers", "channels", "roles", "people"):
        lists = getattr(settings.access, name)
        for one in set(lists.allow) & set(lists.deny):
            problems.add(f"access.{name}", f"allows and denies {one}")
    listed = (*settings.offer.models, *settings.offer.routes)
    model = settings.endpoint.model
    if listed and model is not None and model not in listed:
        problems.unknown("endpoint.model", "model or route offered", model, listed)
    places = [(one.base_url, one.model) for one in (settings.endpoint, *settings.fallbacks)]
    for number, one in enumerate(settings.fallbacks, start=1):
        if places[number][0] and places[number] in places[:number]:
            problems.add(f"fallbacks.{one.name}", "has the same address and model as one before it")
