"""The models that clients can name: those of the file, and its routes; and the list of them at `/v1/models`."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Literal

from eyas.base.errors import nearest
from eyas.base.serving.engines import Role
from eyas.gateway.http.errors import Refused
from eyas.gateway.question.model import is_anthropic, names_of
from eyas.router.settings.schema import ModelSettings, RouteName, RouterSettings
from eyas.router.sidecars.roles import role_of, sidecar_of

__all__ = ["AUTO", "MESSAGES", "Named", "Names"]

EMBEDDINGS = "/v1/embeddings"
MESSAGES = "/v1/messages"
PREFIX = "route/"
AUTO: Literal["auto"] = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """Meaning of a name: a model, or a route, whose model is known when it has been chosen.

    `is_sidecar`: the model is another than the name says, which does what the resident model does not.
    """

    model: str | None = None
    is_sidecar: bool = False
    route: RouteName | Literal["auto"] | None = None


class Names:
    """The first model is the resident one: it is meant where none is named."""

    def __init__(self, settings: RouterSettings, created: int) -> None:
        self._created = created
        self._models = {model.name: model for model in settings.models}
        self._roles = {model.name: role_of(settings, model.name) for model in settings.models}
        self._for_embeddings = sidecar_of(settings, "embeddings")
        self.resident = settings.models[0].name
        self._meanings = {PREFIX + route.name: Named(route=route.name) for route in settings.routes}
        if settings.routes:
            self._meanings[PREFIX + AUTO] = Named(route=AUTO)
        for model in settings.models:  # a model's own name wins over an alias
            self._meanings.update({name: Named(model=model.name) for name in names_of(model.name)[1:]})
        self._meanings.update({name: Named(model=name) for name in self._models})

    def model(self, name: str) -> ModelSettings:
        """Return a model of the file. Raises KeyError."""
        return self._models[name]

    def role(self, model: str) -> Role:
        """Return what a model of the file is for. Raises KeyError."""
        return self._roles[model]

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(self._models)

    def meaning(self, name: str | None, path: str) -> Named:
        """Return what a request to `path` means by `name`. Raises Refused with the nearest name.

        Anthropic's clients ask for several models of theirs, a small one for small jobs: all are the resident one.
        Embeddings of the resident model are those of the model for embeddings, if there is one.
        """
        found = Named(model=self.resident) if name is None else self._meanings.get(name)
        if found is not None:
            if path == EMBEDDINGS and found.model == self.resident and self._for_embeddings is not None:
                return Named(model=self._for_embeddings.name, is_sidecar=True)
            return found
        assert name is not None
        if path.startswith(MESSAGES) and is_anthropic(name):
            return Named(model=self.resident)
        raise self._unknown(name)

    def listed(self) -> dict[str, Any]:
        """Return the list of all names, in a form that OpenAI's and Anthropic's clients read."""
        names = [name for model in self._models for name in names_of(model)]
        names += [name for name in self._meanings if name.startswith(PREFIX) and name not in names]
        entries = [self._entry(name) for name in dict.fromkeys(names)]
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]}
        return {"object": "list", "data": entries, "has_more": False, **ends}

    def entry(self, name: str) -> dict[str, Any]:
        """Return one of them. Raises Refused."""
        if name not in self._meanings:
            raise self._unknown(name)
        return self._entry(name)

    def _entry(self, name: str) -> dict[str, Any]:
        root = self._meanings[name].model or name
        created = datetime.datetime.fromtimestamp(self._created, datetime.UTC).isoformat()
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "eyas",
            "root": root,
            "parent": None,
            "type": "model",
            "display_name": root,
            "created_at": created,
        }

    def _unknown(self, name: str) -> Refused:
        known = nearest(name, self._meanings)
        message = f"The model '{name}' does not exist{known}; GET /v1/models lists those of this router"
        return Refused(message, param="model", code="model_not_found", status=404)
