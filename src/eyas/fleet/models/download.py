"""Brings what a plan needs from the hub to a machine, here or over ssh, and says how far it is.

The work is done on that machine by `hub_program.py`. What is there is not fetched again, what was interrupted goes on
where it stopped. The token of this machine goes along in the script's text and is written nowhere.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from msgspec import Struct

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.fleet.machines.node import NodeError, NodeRunner
from eyas.fleet.models import hub_program
from eyas.fleet.models.vocabulary import fetch_vocabulary
from eyas.recipes.emit.words import heredoc, shell
from eyas.recipes.plan import Download, Plan, Word

__all__ = ["HubError", "Need", "Progress", "fetch", "needs"]

LOOK_S = 120
FETCH_S = 7 * 24 * 3600.0
POLL_S = 1.0
PASSED_ON = ("HF_ENDPOINT", "HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
# On another machine the interpreter of its `hf` command has huggingface_hub for certain; pipx and uv put it where a
# login over ssh does not look. It stands in the first line of `hf`, or, where its path has a space or is long, in the
# second: #!/bin/sh, then '''exec' "/a path/python" "$0" "$@" (uv: single quotes).
FIND_PYTHON = r"""
PATH=$PATH:$HOME/.local/bin
interpreter="1s/^#!\(.*python.*\)/\1/p; 2s/^'''exec' [\"']*\([^\"']*\)[\"']* .*/\1/p"
for python in "$(sed -n "$interpreter" "$(command -v hf)" 2>/dev/null)" python3; do
  if [ -n "$python" ] && "$python" -c 'import huggingface_hub' 2>/dev/null; then break; fi
done
"""


class HubError(UserError):
    """A download that the hub does not give. `kind` is one of the words of `hub_program.py`."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Need(Struct, frozen=True, kw_only=True):
    """The part of a download that a machine still lacks. `blobs` maps its files, by name in the cache, to sizes."""

    repo: str
    total_bytes: int
    missing_bytes: int
    free_bytes: int  # on the disk where it goes
    is_complete: bool  # nothing is to do, not even to link what has come
    folder: str = ""
    blobs: dict[str, int] = {}


class Progress(Struct, frozen=True, kw_only=True):
    node: str
    repo: str
    done_bytes: int
    total_bytes: int


def needs(plan: Plan, node: NodeRunner) -> tuple[Need, ...]:
    """List what each download of `plan` still has to bring to `node`; asks the hub and fetches nothing.

    Raises HubError: gated, not found, hub not reachable and not cached, cache not writable.
    """
    return tuple(look(download, plan.choice.cache, node) for download in plan.emission.downloads)


def fetch(plan: Plan, node: NodeRunner, on_progress: Callable[[Progress], None]) -> None:
    """Download everything that `plan` needs to `node`, one repository after another.

    `on_progress` is called about once a second, from another thread. Raises HubError with the next step; what has come
    already stays and is not fetched again.
    """
    found = needs(plan, node)
    missing = sum(need.missing_bytes for need in found)
    if found and missing > found[0].free_bytes:
        raise HubError(
            f"{readable(missing)} are still to download to {node.name}, {readable(found[0].free_bytes)} are free; "
            "make room (eyas models rm) or give another disk: --cache DIR",
            "disk",
        )
    for download, need in zip(plan.emission.downloads, found, strict=True):
        if not need.is_complete:
            _fetch_one(download, plan.choice.cache, node, need, on_progress)
    fetch_vocabulary(plan, node)


def look(download: Download, cache: Word, node: NodeRunner) -> Need:
    """Return what `node` lacks of one download. Raises HubError."""
    answer = _ask(_request("look", download), cache, node, LOOK_S)
    files = answer["files"]
    return Need(
        repo=download.repo,
        total_bytes=sum(size for _, size, _ in files),
        missing_bytes=sum(size - here for _, size, here in files),
        free_bytes=answer["free"],
        is_complete=answer["is_complete"],
        folder=answer["blobs"],
        blobs={blob: size for blob, size, _ in files},
    )


def _fetch_one(
    download: Download, cache: Word, node: NodeRunner, need: Need, on_progress: Callable[[Progress], None]
) -> None:
    def report(done_bytes: int) -> None:
        on_progress(Progress(node=node.name, repo=need.repo, done_bytes=done_bytes, total_bytes=need.total_bytes))

    with _polling(lambda: report(min(bytes_there(node, need), need.total_bytes))):
        _ask(_request("fetch", download), cache, node, FETCH_S)
    report(need.total_bytes)


@contextmanager
def _polling(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` from time to time in another thread, so that Ctrl-C reaches this one."""
    ended = Event()

    def poll() -> None:
        while not ended.wait(POLL_S):
            try:
                look()
            except NodeError:  # the download itself will report it
                continue

    thread = Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def bytes_there(node: NodeRunner, need: Need) -> int:
    """Count the bytes of `need` that have arrived. A partial file counts by its disk usage, as it may have holes."""
    folder = shlex.quote(need.folder)
    listing = node.run(f"cd {folder} 2>/dev/null && stat -c '%s %b %B %n' -- * 2>/dev/null").out
    arrived = dict.fromkeys(need.blobs, 0)
    for line in listing.splitlines():
        size, blocks, block, name = line.split(" ", 3)
        blob, _, suffix = name.partition(".")
        if blob in arrived:
            here = min(int(size), int(blocks) * int(block)) if suffix else int(size)
            arrived[blob] = max(arrived[blob], here)
    return sum(arrived.values())


def _request(action: str, download: Download) -> dict[str, Any]:
    return {
        "action": action,
        "repo": download.repo,
        "revision": download.revision,
        "include": download.include,
        "exclude": download.exclude,
        "token": _token(),
    }


def _token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def _ask(request: dict[str, Any], cache: Word, node: NodeRunner, timeout_s: float) -> dict[str, Any]:
    exports = "".join(f"export {name}={shlex.quote(os.environ[name])}\n" for name in PASSED_ON if name in os.environ)
    find = f"python={shlex.quote(sys.executable)}\n" if node.is_local else FIND_PYTHON
    exports += f"export {hub_program.HOME}={shell(cache)} {hub_program.REQUEST}={shlex.quote(json.dumps(request))}\n"
    exports += "export HF_HUB_DISABLE_PROGRESS_BARS=1\n"
    script = exports + find + heredoc('"$python" -', inspect.getsource(hub_program))
    result = node.run(script, timeout_s=timeout_s)
    answers = [line for line in result.out.splitlines() if line.startswith(hub_program.ANSWER)]
    if not answers:
        said = " ".join(result.err.split())[-200:]
        raise HubError(f"{node.name}: the download ended without an answer ({said}); try again, it resumes", "other")
    answer: dict[str, Any] = json.loads(answers[-1].removeprefix(hub_program.ANSWER))
    if "problem" in answer:
        raise _error(answer["problem"], answer["detail"], request["repo"], node)
    return answer


def _error(kind: str, detail: str, repo: str, node: NodeRunner) -> HubError:
    where = "" if node.is_local else f" on {node.name}"
    said = {
        "gated": f"{repo} asks for consent first; accept its terms on the hub and set HF_TOKEN",
        "not found": f"{repo} is not on the hub, or private; check the spelling, or set HF_TOKEN",
        "no revision": f"{repo} has no such revision on the hub; name a branch, tag or commit",
        "unreachable": f"{repo} is not cached{where} and the hub cannot be reached ({detail}); go online and try again",
        "interrupted": f"the download of {repo}{where} was interrupted ({detail}); try again, it resumes",
        "corrupt": f"{repo}{where}: {detail} came with the wrong checksum and was thrown away; try again",
        "busy": f"{repo} is being downloaded{where} already; wait for that, or end it",
        "disk": f"the disk{where} is full while downloading {repo}; make room (eyas models rm), it resumes",
        "not writable": f"the cache{where} cannot be written ({detail}); often root's after docker: sudo chown -R",
        "no module": f"no huggingface_hub for python3{where}; run there: pipx (or uv tool) install huggingface_hub",
    }
    return HubError(said.get(kind, f"{repo} could not be fetched{where} ({detail}); try again, it resumes"), kind)
