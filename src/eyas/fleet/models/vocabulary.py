"""Runs the plan's script for Harmony's vocabulary files before anything starts, and first copies those found here.

Names, digests, source and script are those of `recipes/engines/vocabulary.py`. The script runs twice on purpose: in a
launch of the plan, since what `eyas plan --emit` writes must work without eyas; and here for `eyas up`, so that what
cannot be had is one error before anything starts, and a machine without internet gets the files of this one. The
launch then finds them whole and does nothing.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

from eyas.base.errors import UserError
from eyas.fleet.machines.node import NodeRunner
from eyas.recipes.emit.words import heredoc, shell
from eyas.recipes.engines.vocabulary import DIGESTS, FETCH, HOME, VARIABLE
from eyas.recipes.plan import Plan

__all__ = ["fetch_vocabulary", "lacking", "wants_vocabulary"]

FETCH_S = 300


def wants_vocabulary(plan: Plan) -> bool:
    return "vocab-files" in plan.emission.features


def lacking(node: NodeRunner) -> tuple[str, ...]:
    """List the vocabulary files that `node` does not have, or not with the right content."""
    sums = node.run(f"cd {shell(HOME)} 2>/dev/null && sha256sum -- *.tiktoken 2>/dev/null").out
    found = {line.split()[1]: line.split()[0] for line in sums.splitlines()}
    return tuple(name for name, digest in DIGESTS.items() if found.get(name) != digest)


def fetch_vocabulary(plan: Plan, node: NodeRunner) -> None:
    """Put the files where the plan's launches look for them. Raises UserError: they cannot be had."""
    if not wants_vocabulary(plan):
        return
    for name in lacking(node):
        content = _own(name)
        if content is not None:
            folder = shell(HOME)
            text = base64.encodebytes(content).decode("ascii")
            node.run(f"mkdir -p {folder}\n" + heredoc(f"base64 -d >{folder}/{name}", text), timeout_s=FETCH_S)
    if not lacking(node):
        return
    result = node.run(heredoc(f"sh -s {shell(HOME)}", FETCH), timeout_s=FETCH_S)
    if result.code != 0:
        said = " ".join(result.err.split())[-200:] or "wrong checksum"
        raise UserError(
            f"{node.name} cannot get the vocabulary files of Harmony ({said}); put {' and '.join(lacking(node))} "
            f"into ~/{HOME.path} there"
        )


def _own(name: str) -> bytes | None:
    """Return this machine's copy of the file: where `VARIABLE` says, or where an earlier plan has put it."""
    for folder in (os.environ.get(VARIABLE), Path.home() / HOME.path):
        path = Path(folder or "") / name
        if folder and path.is_file():
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() == DIGESTS[name]:
                return content
    return None
