"""Sidecars among the models of a router's file: the first for vision, and the first for embeddings."""

from __future__ import annotations

from eyas.base.serving.engines import Role
from eyas.router.settings.schema import ModelSettings, RouterSettings

__all__ = ["role_of", "sidecar_of"]


def role_of(settings: RouterSettings, model: str) -> Role:
    """Return the role of a model of the file, which all of its backends have."""
    found = next(one for one in settings.models if one.name == model)
    return settings.backend(found.backends[0]).role


def sidecar_of(settings: RouterSettings, role: Role) -> ModelSettings | None:
    """Return the first model with this role; None if the file has none."""
    return next((model for model in settings.models if role_of(settings, model.name) == role), None)
