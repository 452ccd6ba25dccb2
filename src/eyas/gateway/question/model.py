"""Checks the model name of a request."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.base.types import ModelInfo
from eyas.gateway.http.errors import Refused
from eyas.gateway.server.context import Context

__all__ = ["ModelNotFound", "check_model", "check_name", "is_anthropic", "names_of"]

ALIAS = "claude-"  # Anthropic's clients list models with "claude" or "anthropic" in their names only


class ModelNotFound(Refused):
    """A request for a model other than the one that this server serves."""

    def __init__(self, name: str, present: str) -> None:
        message = f"The model '{name}' does not exist; this server has '{present}'"
        super().__init__(message, param="model", code="model_not_found", status=404)
        self.name = name


def names_of(name: str) -> tuple[str, ...]:
    """Return the names that a model is listed and asked for by: its own and, where that is not one, an alias."""
    return (name,) if is_anthropic(name) else (name, f"{ALIAS}{name}")


def is_anthropic(name: str) -> bool:
    """Whether Anthropic's clients take this for a model of theirs."""
    return any(word in name.lower() for word in ("claude", "anthropic"))


def check_model(context: Context, name: str | None) -> None:
    """Raises ModelNotFound for the name of another model; None means the only one there is."""
    if name is not None and name not in names_of(context.info.name):
        raise ModelNotFound(name, context.info.name)


def check_name(name: str, models: Sequence[ModelInfo]) -> str:
    """Return the model that a client of the Anthropic API asks for: with one of Anthropic's names, the first.

    Their clients ask for several, a small one for small jobs. Raises ModelNotFound.
    """
    for model in models:
        if name in names_of(model.name):
            return model.name
    if is_anthropic(name):
        return models[0].name
    raise ModelNotFound(name, models[0].name)
