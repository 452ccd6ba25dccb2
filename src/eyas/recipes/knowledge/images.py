"""Finds the version of an engine in a container image: by its labels, by a table of images, or by its tag.

References are OCI's: `[HOST[:PORT]/]PATH[:TAG][@ALGORITHM:DIGEST]`. A registry's host and port say nothing about an
image, so a mirror's copy is known by its path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import NamedTuple

from eyas.base.errors import UserError
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.records import Engine, KnownImage
from eyas.recipes.versions import satisfies

__all__ = ["ImageName", "Inside", "brings_cuda_13", "engine_of_image", "inside", "parse_image"]

CUDA_13 = "cu13"  # in tags: cu130-nightly, v0.5.21-cu130
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::\d{1,5})?")
_REFERENCE = re.compile(
    rf"(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-fA-F]{32,}))?",
    re.ASCII,
)
_VERSION = re.compile(r"v?(\d+\.\d+(?:\.\d+)*(?:(?:rc|a|b|\.?post|\.dev)\d+)*)(?:[-_+].*)?", re.ASCII)
# Of what `docker image inspect` shows. The version label is taken where a label beside it names the engine: images
# keep the labels of what they are built on, Ubuntu's 22.04 for one.
_VERSION_LABEL = "org.opencontainers.image.version"
_NAME_LABELS = tuple(f"org.opencontainers.image.{name}" for name in ("title", "source", "ref.name"))


class ImageName(NamedTuple):
    """A reference. `path` is the repository without its registry's host, in the form `vllm/vllm-openai`."""

    host: str | None
    path: str
    tag: str | None
    digest: str | None


class Inside(NamedTuple):
    """Version of the engine inside an image, None where nothing tells it; `how` it is known, in words."""

    version: str | None
    how: str


def parse_image(text: str) -> ImageName:
    """Parse a reference. Raises UserError where it is none."""
    first, slash, rest = text.partition("/")
    host = first if slash and (set(first) & {".", ":"} or first == "localhost") else None  # else a part of the path
    found = _REFERENCE.fullmatch(rest if host is not None else text)
    if found is None or (host is not None and not _HOST.fullmatch(host)):
        example = "write e.g. vllm/vllm-openai:v0.33.0 or registry.example:5000/team/vllm:0.33.0"
        raise UserError(f"--image wants the name of a container image, got '{text}'; {example}")
    return ImageName(host, found["path"], found["tag"], found["digest"])


def engine_of_image(name: ImageName) -> str | None:
    """Return the engine whose published image it is, or a mirror of; None for an image that no table has."""
    known = _known(name)
    return None if known is None else known.engine


def inside(engine: Engine, name: ImageName, settings: Mapping[str, str]) -> Inside:
    """Return what is known of the engine in an image; `settings` are its labels and variables, where it is at hand."""
    known = _known(name)
    said = _said(engine, settings)
    if said is not None:
        return Inside(said, "its labels say so")
    tag = name.tag or ""
    if known is not None:
        for pattern, version in known.versions.items():
            if fnmatch(tag, pattern):
                return Inside(version, known.sources[0])
        if not known.is_numbered:
            return Inside(None, f"the tags of {known.name} do not say it")
    found = _VERSION.fullmatch(tag)
    if found is not None and (known is not None or satisfies(found[1], engine.versions)):
        return Inside(found[1], "its tag says so")
    what = "it has no tag" if not tag else f"its tag '{tag}' does not say it"
    return Inside(None, what)


def brings_cuda_13(image: str) -> bool:
    """Return whether an image is known to hold CUDA 13, or says so by its name. Raises UserError where it is none."""
    name = parse_image(image)
    known = _known(name)
    patterns = () if known is None else known.cuda_13
    return CUDA_13 in image or any(fnmatch(name.tag or "", pattern) for pattern in patterns)


def _known(name: ImageName) -> KnownImage | None:
    for image in knowledge().images.values():
        if any(name.path == known or name.path.endswith(f"/{known}") for known in image.repositories):
            return image
    return None


def _said(engine: Engine, settings: Mapping[str, str]) -> str | None:
    """Return the version that the image's variables or labels give, None where they give none."""
    wanted = [*engine.image_variables]
    names = {engine.name, *engine.aliases}
    if any(alias in settings.get(label, "").lower() for label in _NAME_LABELS for alias in names):
        wanted.append(_VERSION_LABEL)
    for key in wanted:
        found = _VERSION.fullmatch(settings.get(key, ""))
        if found is not None:
            return found[1]
    return None
