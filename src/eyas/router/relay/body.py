"""A request's body: its top level is read, and edited, while all that it holds stays as it was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from eyas.base.errors import InvalidRequest
from eyas.gateway.http.body import Raw
from eyas.gateway.http.explain import not_json

__all__ = ["Body"]

_top = msgspec.json.Decoder(dict[str, msgspec.Raw])
_string = msgspec.json.Decoder(str | None)
_number = msgspec.json.Decoder(int | None)
MAX_NAME = 256


class Body:
    """`fields` are the top level; values are JSON, or plain where they were set here."""

    __slots__ = ("_sent", "fields")

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self._sent: tuple[str | None, bytes] | None = None

    @classmethod
    def of(cls, raw: Raw) -> Body:
        """Read a body. Raises InvalidRequest unless it is a JSON object."""
        try:
            return cls(_top.decode(raw))
        except msgspec.ValidationError:
            raise InvalidRequest("the body must be a JSON object") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise not_json(raw, error) from None

    def with_fields(self, new: Mapping[str, Any]) -> Body:
        """Return the body with other values for some of its fields; new ones stand last."""
        return Body({**self.fields, **new})

    def text(self, name: str) -> str | None:
        """Return a field that is a string; None if it is not given. Raises InvalidRequest."""
        if (raw := self.fields.get(name)) is None:
            return None
        try:
            found: str | None = _string.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidRequest(f"'{name}' must be a string", param=name) from None
        return found

    def number(self, name: str) -> int | None:
        """Return a field that is a whole number; None if it is not given, or something else."""
        value = self.fields.get(name)
        try:
            found: int | None = _number.decode(value) if isinstance(value, msgspec.Raw) else value
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return found

    def is_true(self, name: str) -> bool:
        """Return whether a field is `true`."""
        return self.fields.get(name) == msgspec.Raw(b"true")

    def encoded(self, model: str | None) -> bytes:
        """Return the body as it is sent to a backend that knows the model by this name; None leaves it as it is."""
        if self._sent is None or self._sent[0] != model:
            fields = self.fields if model is None else {**self.fields, "model": model}
            self._sent = model, msgspec.json.encode(fields)
        return self._sent[1]
