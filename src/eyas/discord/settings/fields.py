"""Readers of values and sections of the bot's file. Those of single values raise ValueError for a wrong one."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from eyas.base.settings.values import Problems, Section, num_bytes

__all__ = [
    "duration",
    "host",
    "list_of",
    "none_or",
    "prose",
    "reaction",
    "read_section",
    "size",
    "snowflake",
    "template",
]

T = TypeVar("T")
Reader = Callable[[Any], Any]

SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h)", re.ASCII)
HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)
CUSTOM_EMOJI = re.compile(r"<?a?:?(\w{2,32}):(\d{1,20})>?", re.ASCII)
PLACE = re.compile(r"\{([^{}]*)\}")
MAX_TEXT_CHARS = 1500  # of a status text: it must fit into a message with what may stand beside it
MAX_PROSE_CHARS = 100_000


def read_section(cls: type[T], content: Any, where: str, problems: Problems) -> T:
    """Read a section whose keys are the fields of the dataclass `cls`, sections of it included.

    A field without a value as its default is a section. The others hold in their metadata `parse`, their reader, and
    perhaps `key`, their name in the file. A wrong value becomes a problem and leaves the default.
    """
    known = {
        item.metadata.get("key") or item.name: item
        for item in fields(cls)  # type: ignore[arg-type]
    }
    found = Section(content, where, tuple(known), problems)
    values: dict[str, Any] = {}
    for key, item in known.items():
        if key not in found:
            continue
        if item.default_factory is not MISSING:
            inner: Any = item.default_factory
            values[item.name] = read_section(inner, found.get(key), found.place(key), problems)
        else:
            values[item.name] = found.read(key, item.metadata["parse"], item.default)
    return cls(**values)


def duration(low: float, high: float) -> Reader:
    """Return a reader of a time as seconds, such as 2, 2s, 500ms or 2min, within bounds in seconds."""

    def read(value: Any) -> float:
        match = DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is not None:
            seconds = float(match[1]) * SECONDS[match[2]]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value
        else:
            raise ValueError(f"wants a time such as 2s, 500ms or 2min, got {reprlib.repr(value)}")
        if not low <= seconds <= high:
            raise ValueError(f"wants {low:g} to {high:g} seconds, got {reprlib.repr(value)}")
        return float(seconds)

    return read


def size(low: int, high: int) -> Reader:
    """Return a reader of a size with its unit, such as 1MiB, within bounds in bytes."""

    def read(value: Any) -> int:
        found = num_bytes(value)
        if found is None or found < 0:
            raise ValueError(f"wants a size such as 1MiB or 512KiB, got {reprlib.repr(value)}")
        if not low <= found <= high:
            raise ValueError(f"wants {low} B to {high >> 20} MiB, got {value}")
        return found

    return read


def none_or(parse: Reader) -> Reader:
    """Return a reader that takes the word none as None, too."""
    return lambda value: None if value == "none" else parse(value)


def list_of(parse: Reader, *, least: int = 0) -> Reader:
    """Return a reader of a list as a tuple without repetitions; a single value is a list of one."""

    def read(value: Any) -> tuple[Any, ...]:
        values = value if isinstance(value, list) else [value]
        if len(values) < least:
            raise ValueError(f"wants at least {least}, got an empty list")
        return tuple(dict.fromkeys(parse(one) for one in values))

    return read


def snowflake(value: Any) -> int:
    """Read the id of a server, channel, role or person (https://discord.com/developers/docs/reference#snowflakes)."""
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"[1-9][0-9]{0,18}", text):
        raise ValueError(
            f"wants ids such as 103735883630395392, got {reprlib.repr(value)}; in Discord, with Developer Mode on "
            "(Settings, Advanced), a right click copies them"
        )
    return int(text)


def host(value: Any) -> str:
    """Read a host name or an IPv4 address, without scheme and port."""
    found = value.lower() if isinstance(value, str) else ""
    if not HOST.fullmatch(found) or ".." in found:
        raise ValueError(f"wants host names such as cdn.discordapp.com, got {reprlib.repr(value)}")
    return found


def prose(value: Any) -> str:
    """Read a text of any number of lines."""
    if not isinstance(value, str) or len(value) > MAX_PROSE_CHARS:
        raise ValueError(f"wants a text of at most {MAX_PROSE_CHARS} characters, got {reprlib.repr(value)}")
    return value.strip()


def template(*places: str) -> Reader:
    """Return a reader of a text of the bot in which no other `{place}` stands than these."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or len(value) > MAX_TEXT_CHARS:
            raise ValueError(f"wants a text of 1 to {MAX_TEXT_CHARS} characters, got {reprlib.repr(value)}")
        if unknown := [name for name in PLACE.findall(value) if name not in places]:
            known = f"; there is {{{places[0]}}}" if places else ""
            raise ValueError(f"has a place that means nothing: {{{unknown[0][:40]}}}{known}")
        return value

    return read


def reaction(value: Any) -> str | None:
    """Read an emoji: itself, or NAME:ID of a server's own one, as discord.py takes both; `none` is no reaction."""
    if value == "none" or value is False:
        return None
    if isinstance(value, str):
        if match := CUSTOM_EMOJI.fullmatch(value):
            return f"{match[1]}:{match[2]}"
        if 1 <= len(value) <= 16 and not value.isascii() and not any(char.isspace() for char in value):
            return value
    raise ValueError(f"wants an emoji, NAME:ID of a server's own one, or none, got {reprlib.repr(value)}")
