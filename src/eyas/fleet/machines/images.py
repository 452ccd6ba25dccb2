"""Reads the labels and variables of a container image that is on a machine."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from eyas.fleet.machines.node import NodeError, NodeRunner
from eyas.recipes.emit.words import shell

__all__ = ["image_settings"]

ASK_S = 20


class _Config(Struct, rename={"env": "Env", "labels": "Labels"}):
    """The part of docker's answer that is read; both are null in an image without any."""

    env: list[str] | None = None
    labels: dict[str, str] | None = None


def image_settings(node: NodeRunner, image: str) -> dict[str, str]:
    """Return labels and variables of `image` by name; {} where docker or the image is not there, or does not answer."""
    script = f"docker image inspect --format '{{{{json .Config}}}}' -- {shell(image)} 2>/dev/null"
    try:
        result = node.run(script, timeout_s=ASK_S)
        config = msgspec.json.decode(result.out if result.code == 0 else "{}", type=_Config)
    except (NodeError, msgspec.DecodeError):
        return {}
    variables = (variable.partition("=") for variable in config.env or ())
    return {**(config.labels or {}), **{name: value for name, _, value in variables}}
