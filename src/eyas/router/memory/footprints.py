"""Keeps what backends were seen to take, in a file below eyas's home. A full disk stops learning, not serving."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from eyas.recipes.plan import Plan
from eyas.router.memory.member import Footprint
from eyas.router.settings.schema import BackendSettings

__all__ = ["Footprints", "declared", "key_of"]

log = logging.getLogger(__name__)

FILE = "footprints.json"
MAX_KEPT = 256  # plans; the oldest go


class Kept(Struct, frozen=True):
    peak: int
    steady: int


def key_of(plan: Plan) -> str:
    """Return by what a footprint is found again: everything that is started, and on what."""
    raw = msgspec.json.encode((plan.box.name, plan.choice, plan.emission.launches), order="deterministic")
    return f"{plan.choice.name}-{hashlib.sha256(raw).hexdigest()[:16]}"


def declared(settings: BackendSettings) -> Footprint:
    """Return the footprint that the file, or the plan, declares."""
    return Footprint(peak=max(settings.peak_bytes, settings.steady_bytes), steady=settings.steady_bytes)


class Footprints:
    """Footprints that were learnt, by the keys of plans. A file that cannot be read is as none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        try:
            self._kept = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Kept])
        except FileNotFoundError:
            pass
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("footprints that were learnt before are lost: %s cannot be read: %s", self._path, error)

    def find(self, keys: Mapping[str, str], backends: Mapping[str, BackendSettings]) -> dict[str, Footprint]:
        """Return what is expected of each backend; `keys` are those of its plan."""
        found = {}
        for name, settings in backends.items():
            kept = self._kept.get(keys.get(name, ""))
            found[name] = (
                declared(settings) if kept is None else Footprint(peak=kept.peak, steady=kept.steady, is_learnt=True)
            )
        return found

    def keep(self, key: str, peak: int, steady: int) -> None:
        """Keep what was learnt. May block; threads may call it."""
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = Kept(peak, steady)
            while len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            new = self._path.with_suffix(f".{os.getpid()}.new")
            try:
                new.write_bytes(msgspec.json.encode(self._kept))
                new.replace(self._path)
            except OSError as error:
                log.warning("what was learnt of memory is not kept: %s: %s", self._path, error.strerror)
                with suppress(OSError):
                    new.unlink(missing_ok=True)
