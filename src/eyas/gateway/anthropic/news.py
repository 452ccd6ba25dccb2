"""Counts fields that this server does not know, and versions of Claude Code; the log has each of them once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from eyas.base.logs import fields
from eyas.gateway.anthropic.body import MessagesBody
from eyas.gateway.http.body import Raw
from eyas.gateway.server.tallies import Tallies, Tally

__all__ = ["note"]

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
VERSION = re.compile(
    r"\Ax-anthropic-billing-header:[^\n]*?cc_version=(\d{1,4}\.\d{1,4}\.\d{1,5})[^\n]*?cc_entrypoint=([a-z0-9_-]{1,32})"
)
# Fields that have no effect here: labels, or wishes about what this server does not have.
WITHOUT_EFFECT = frozenset(
    {
        *("cache_control", "container", "context_management", "diagnostics", "inference_geo", "betas", "safeguards"),
        *("service_tier", "speed", "user_profile_id", "workspace_id"),
    }
)
KNOWN = WITHOUT_EFFECT | set(MessagesBody.__struct_encode_fields__)
NEW_FIELDS = Tally(
    name="eyas:unknown_message_fields", text="Fields of /v1/messages that had no effect.", labels=("field",)
)
CLIENTS = Tally(
    name="eyas:claude_code_requests",
    text="Requests of Claude Code that say its version.",
    labels=("version", "entrypoint"),
)

log = logging.getLogger(__name__)


def note(tallies: Tallies, raw: Raw, body: MessagesBody) -> None:
    """Count the fields of a body that are not known, and the version that its system prompt names."""
    for name in names_in(raw):
        if name not in KNOWN and NAME.fullmatch(name) and tallies.count(NEW_FIELDS, name):
            log.info("a field of /v1/messages that has no effect here", extra=fields(field=name))
    system = body.system
    first = system if isinstance(system, str) else system[0].text if system else ""
    if (found := VERSION.match(first)) is not None and tallies.count(CLIENTS, found[1], found[2]):
        log.info("Claude Code", extra=fields(version=found[1], entrypoint=found[2]))


def names_in(raw: Raw) -> Iterable[str]:
    """Return the names of a body's fields; none if one is no UTF-8, as decoding skips what it does not know."""
    with suppress(UnicodeDecodeError):
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return ()
