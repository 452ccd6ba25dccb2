"""The vocabulary files of Harmony: which, from where, with which digests, and the one script that fetches them.

The renderer inside the engines would download them at its first use, which fails in a container without internet. So
each plan brings them to every node before its server starts, in a launch that needs no eyas on the node.
"""

from __future__ import annotations

from eyas.recipes.plan import Choice, EnvVar, Home, Launch, Mount, Wait
from eyas.recipes.records import Model

__all__ = ["DIGESTS", "FETCH", "HOME", "VARIABLE", "env", "launches", "mounts"]

HOME = Home(".cache/eyas/tiktoken")  # on the node
FOLDER = "/opt/tiktoken"  # the same inside a container
VARIABLE = "TIKTOKEN_ENCODINGS_BASE"  # where the renderer looks
SOURCE = "https://openaipublic.blob.core.windows.net/encodings"
DIGESTS = {  # file: sha256; these and the source are those of the tiktoken package
    "o200k_base.tiktoken": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base.tiktoken": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}
# For `sh`, with the folder as its argument. It downloads nothing when the files are there and complete.
FETCH = f"""\
set -eu
mkdir -p "$1" && cd "$1"
fetch() {{
    if ! echo "$2  $1" | sha256sum -c - >/dev/null 2>&1; then
        curl -fsSL --retry 3 -o "$1.part" "{SOURCE}/$1"
        echo "$2  $1.part" | sha256sum -c - >/dev/null
        mv "$1.part" "$1"
    fi
}}
""" + "".join(f"fetch {name} {digest}\n" for name, digest in DIGESTS.items())


def launches(choice: Choice, model: Model) -> tuple[Launch, ...]:
    """Return one launch per node, which runs to its end; none for models without Harmony."""
    if not model.harmony:
        return ()
    return tuple(
        Launch(
            name=f"vocabulary-{rank}" if len(choice.nodes) > 1 else "vocabulary",
            node=rank,
            argv=("sh", "-c", FETCH, "vocabulary", HOME),
            wait=Wait(timeout_s=120.0),
            is_once=True,
        )
        for rank in range(len(choice.nodes))
    )


def env(choice: Choice, model: Model) -> tuple[EnvVar, ...]:
    """Return the variable that points the renderer to the files, as its process sees them."""
    return (EnvVar(name=VARIABLE, value=HOME if choice.image is None else FOLDER),) if model.harmony else ()


def mounts(model: Model) -> tuple[Mount, ...]:
    """Return the mounts that a container needs for that."""
    return (Mount(source=HOME, target=FOLDER, read_only=True),) if model.harmony else ()
