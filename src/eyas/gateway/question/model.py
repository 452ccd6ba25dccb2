"""Checks the model name of a request."""

from __future__ import annotations

from eyas.gateway.http.errors import Refused
from eyas.gateway.server.context import Context

__all__ = ["ModelNotFound", "check_model"]


class ModelNotFound(Refused):
    """A request for a model other than the one that this server serves."""

    def __init__(self, name: str, present: str) -> None:
        message = f"The model '{name}' does not exist; this server has '{present}'"
        super().__init__(message, param="model", code="model_not_found", status=404)
        self.name = name


def check_model(context: Context, name: str | None) -> None:
    """Raises ModelNotFound for the name of another model; None means the only one there is."""
    if name not in (None, context.info.name):
        raise ModelNotFound(name or "", context.info.name)
