"""Typed values of a settings file. What is wrong is collected, so that all of it is said at once."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

from eyas.base.errors import UserError, nearest
from eyas.base.settings.config import ENV_KEY
from eyas.base.sizes import parse_size

__all__ = [
    "KEY",
    "VARIABLE",
    "Problems",
    "Section",
    "key_in",
    "keys_in",
    "name",
    "num_bytes",
    "scalar",
    "spans",
    "text",
    "true_or_false",
    "url",
]

T = TypeVar("T")
MAX_S = 7 * 24 * 3600.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)  # stands in headers, URLs and metrics
MODEL = re.compile(r"[!-~]{1,200}")
KEY = re.compile(r"[!-~]+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
DIGEST = "sha256:"
SPANS = ("queue", "prefill", "stall", "total")


class Problems:
    """Everything that is wrong with a file, each with its place there."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, where: str, text: str) -> None:
        if (line := f"{where} {text}") not in self.texts:
            self.texts.append(line)

    def unknown(self, where: str, kind: str, found: object, known: Sequence[str]) -> None:
        """Add that there is no such `kind`, with the nearest name, in whatever case it is, or all names."""
        close = nearest(str(found), known) or nearest(str(found).upper(), known)
        others = f"; there are: {', '.join(known)}" if known and len(known) <= 12 else ""
        self.add(f"{where}:", f"no {kind} '{str(found)[:64]}'{close or others}")


class Section:
    """A mapping of the file whose keys are known. Each `read` takes one of them."""

    def __init__(self, content: object, where: str, known: Sequence[str], problems: Problems) -> None:
        self.where, self.problems = where, problems
        self._values: Mapping[Any, Any] = {}
        if isinstance(content, dict):
            self._values = content
        elif content is not None:
            problems.add(where or "the file", f"wants keys and values, got {reprlib.repr(content)}")
        for key in self._values:
            if key not in known:
                dotted = ".".join(filter(None, (where, str(key)[:64])))
                problems.add(f"{dotted}:", f"unknown key{nearest(str(key), known)}")

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def read(self, key: str, parse: Callable[[Any], T], default: T) -> T:
        """Return the value of `key`, or `default` if it is not there or wrong, which becomes a problem."""
        value = self._values.get(key)
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError as error:
            self.problems.add(self.place(key), str(error))
            return default

    def place(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def entries(self, key: str) -> Iterator[tuple[str, Any]]:
        """Yield names and values of a mapping of any keys."""
        found = self._values.get(key)
        if found is None:
            return
        if not isinstance(found, dict):
            self.problems.add(self.place(key), f"wants names and what they mean, got {reprlib.repr(found)}")
            return
        for entry, value in found.items():
            if isinstance(entry, str):
                yield entry, value
            else:
                self.problems.add(self.place(key), f"has a name that is none: {entry!r}; put it in quotes")


def text(value: Any) -> str:
    """Read a word, for instance a model's name. Raises ValueError, as all readers here do."""
    found = str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    if not MODEL.fullmatch(found):
        raise ValueError(f"wants a name of printable ASCII without spaces, got {reprlib.repr(value)}")
    return found


def scalar(parse: Callable[[str], T]) -> Callable[[Any], T]:
    """Return a reader of what a setting of `eyas.base.settings.config` reads from text."""

    def read(value: Any) -> T:
        if isinstance(value, str | int | float):
            return parse(str(value))
        raise ValueError(f"wants a single value, got {reprlib.repr(value)}")

    return read


def true_or_false(value: Any) -> bool:
    """Read a truth value."""
    if not isinstance(value, bool):
        raise ValueError(f"wants true or false, got {reprlib.repr(value)}")
    return value


def num_bytes(value: Any) -> int | None:
    """Return the bytes of a size with its unit, such as 90GiB; None for what is no size, or one without a number."""
    if not isinstance(value, str) or "%" in value:
        return None
    try:
        return parse_size(value, 0)
    except UserError:
        return None


def name(value: str, kind: str) -> None:
    """Check a name of a backend. Raises ValueError."""
    if not NAME.fullmatch(value):
        raise ValueError(f"is no name of a {kind}: it wants letters, digits and _ . - (63 at most, first no sign)")


def url(value: Any) -> str:
    """Read an address of a server; `/v1` at its end is left out."""
    wants = "wants an address such as http://127.0.0.1:8000"
    if not isinstance(value, str) or not MODEL.fullmatch(value):
        raise ValueError(f"{wants}, got {_shown(value)}")
    parts = urlsplit(value)
    if "@" in parts.netloc:
        raise ValueError(f"{wants}; a password does not belong into it, a key is named by key: env:NAME")
    try:
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise ValueError(f"{wants}, got {_shown(value)}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1').rstrip('/')}"


def _shown(address: Any) -> str:
    """Return an address for an error; what may hold a password or key is not quoted."""
    is_open = not isinstance(address, str) or not set(address) & set("?#@")
    return reprlib.repr(address) if is_open else "one with '?', '#' or '@', not shown since a key may stand in it"


def key_in(environ: Mapping[str, str]) -> Callable[[Any], str]:
    """Return a reader of `env:NAME`, whose value goes into a header as a backend's key."""
    read_variable = _variable_in(environ)

    def read(value: Any) -> str:
        key = read_variable(value)
        if not KEY.fullmatch(key):
            raise ValueError(
                f"names the environment variable {value.removeprefix(ENV_KEY)}, whose value has a blank, a line end or"
                " a character that is not ASCII: such a key cannot stand in a header"
            )
        return key

    return read


def _variable_in(environ: Mapping[str, str]) -> Callable[[Any], str]:
    """Return a reader of `env:NAME`. A key itself does not belong into a file, and is not quoted."""

    def read(value: Any) -> str:
        variable = value.removeprefix(ENV_KEY) if isinstance(value, str) and value.startswith(ENV_KEY) else ""
        if not VARIABLE.fullmatch(variable):
            raise ValueError("wants env:NAME, the name of an environment variable that holds the key, not the key")
        if not environ.get(variable):
            raise ValueError(f"names the environment variable {variable}, which is not set")
        return environ[variable]

    return read


def keys_in(environ: Mapping[str, str]) -> Callable[[Any], str]:
    """Return a reader of the keys of clients: `sha256:HEX` or `env:NAME`, comma-separated or a list."""
    read_key = _variable_in(environ)

    def read(value: Any) -> str:
        entries = value if isinstance(value, list) else value.split(",") if isinstance(value, str) else [value]
        found = [entry.strip() if isinstance(entry, str) else entry for entry in entries]
        if not found:
            raise ValueError("wants keys: sha256:HEX (see 'eyas key') or env:NAME")
        try:
            return ",".join(
                entry if isinstance(entry, str) and entry.startswith(DIGEST) else read_key(entry) for entry in found
            )
        except ValueError as error:
            text = str(error).replace("wants env:NAME", "wants sha256:HEX (see 'eyas key'), or env:NAME")
            raise ValueError(text) from None

    return read


def spans(content: Any, where: str, problems: Problems) -> dict[str, float | None]:
    """Read those budgets that are given, in seconds, as fields of Budgets; `none` or null is no limit."""
    section = Section(content, where, SPANS, problems)
    given = content if isinstance(content, dict) else {}
    return {f"{span}_s": section.read(span, _seconds, None) for span in SPANS if span in given}


def _seconds(value: Any) -> float | None:
    if value == "none":
        return None
    seconds = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    if not 0 < seconds <= MAX_S:
        raise ValueError(f"wants seconds above 0, at most {MAX_S:.0f}, or none for no limit, got {reprlib.repr(value)}")
    return float(seconds)
