"""Says in the log, once each, which fields this server does not know and which versions of Claude Code ask it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from eyas.base.logs import fields
from eyas.gateway.anthropic.body import CountBody
from eyas.gateway.http.body import Raw

__all__ = ["News"]

MAX_NOTED = 64  # names in all: they come from clients
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
VERSION = re.compile(
    r"\Ax-anthropic-billing-header:[^\n]*?cc_version=(\d+\.\d+\.\d+)[^\n]*?cc_entrypoint=([a-z0-9_-]{1,32})"
)
# Fields of the API that have no effect here, by its documentation or because this server has nothing of the kind.
WITHOUT_EFFECT = frozenset(
    {
        *("cache_control", "container", "context_management", "diagnostics", "inference_geo", "betas", "safeguards"),
        *("service_tier", "speed", "user_profile_id", "metadata", "output_format"),
    }
)

log = logging.getLogger(__name__)


class News:
    """Names that were logged. Safe in threads: at worst a line comes twice."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def note(self, raw: Raw, kind: type[Struct], body: CountBody) -> None:
        """Log fields of the body, and the version that its system prompt names, if they are new."""
        known = {*kind.__struct_encode_fields__, *WITHOUT_EFFECT, *self._seen}
        for name in names_in(raw):
            if name not in known and NAME.fullmatch(name):
                self._log(name, "a field of /v1/messages that has no effect here", field=name)
        system = body.system
        first = system if isinstance(system, str) else system[0].text if system else ""
        if (found := VERSION.match(first)) is not None:
            self._log("/".join(found.groups()), "Claude Code", version=found[1], entrypoint=found[2])

    def _log(self, key: str, message: str, **values: Any) -> None:
        if key not in self._seen and len(self._seen) < MAX_NOTED:
            self._seen.add(key)
            log.info(message, extra=fields(**values))


def names_in(raw: Raw) -> Iterable[str]:
    """Return the names of a body's fields; none if one is no UTF-8, as decoding skips what it does not know."""
    with suppress(UnicodeDecodeError):
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return ()
