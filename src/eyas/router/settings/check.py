"""Finds what is wrong with a router's file as a whole: names that mean nothing, and parts that do not suit each other.

Nothing is asked over the network, but for the address of a name with the router's own port.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from eyas.base.errors import UserError
from eyas.base.serving.engines import Role
from eyas.base.settings.values import Problems
from eyas.fleet.running.deployment import secrets_of
from eyas.gateway.operation.auth import digests, origins
from eyas.gateway.server.hosts import allowed_hosts
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Plan
from eyas.router.settings.places import is_place_of, place_of
from eyas.router.settings.rest import check_memory
from eyas.router.settings.schema import BackendSettings, RouterSettings

__all__ = ["check"]

Plans = Mapping[str, Plan]


def check(settings: RouterSettings, plans: Plans, environ: Mapping[str, str], problems: Problems) -> None:
    """Add all problems of `settings`; `plans` are those that could be read, by backend."""
    _check_models(settings, problems)
    _check_names(settings, problems)
    _check_routes(settings, problems)
    _check_twins(settings, plans, problems)
    _check_places(settings, plans, problems)
    for name, plan in plans.items():
        _check_plan(settings, name, plan, environ, problems)
    check_memory(settings, plans, problems)
    _check_server(settings, problems)


def _check_models(settings: RouterSettings, problems: Problems) -> None:
    backends = {backend.name: backend for backend in settings.backends}
    if not settings.backends:
        problems.add("backends", "is empty; it wants at least one")
    if not settings.models:
        problems.add("models", "is empty; it wants at least one, whose backends are listed")
    for model in settings.models:
        where = f"models.{model.name}"
        found = []
        for name in model.backends:
            if name not in backends:
                problems.unknown(where, "backend", name, list(backends))
            elif model.backends.count(name) > 1:
                problems.add(where, f"names {name} twice")
            else:
                found.append(backends[name])
        if len({backend.role for backend in found}) > 1:
            roles = ", ".join(f"{backend.name} is for {backend.role}" for backend in found)
            problems.add(where, f"has backends of several roles: {roles}")
    if settings.models and (others := _roles(settings, settings.models[0].name) - {"text"}):
        first = settings.models[0].name
        where = f"models.{first}"
        problems.add(where, f"stands first and so is the resident model, which is for text; this is for {min(others)}")
    used = {name for model in settings.models for name in model.backends}
    for backend in settings.backends:
        if settings.models and backend.name not in used and backend.twin_of not in used:
            problems.add(f"backends.{backend.name}", "belongs to no model; list it at one under models")


def _check_names(settings: RouterSettings, problems: Problems) -> None:
    """Check that backends which stand in for each other name their model: what one has first may be another model."""
    twins = {backend.twin_of for backend in settings.backends}
    for model in settings.models:
        for backend in settings.backends:
            is_one_of = backend.name in model.backends and (len(model.backends) > 1 or backend.name in twins)
            if backend.model is None and backend.plan is None and (is_one_of or backend.twin_of in model.backends):
                problems.add(
                    f"backends.{backend.name}",
                    f"wants model: the name of the model there, since it is not the only backend of {model.name}",
                )


def _roles(settings: RouterSettings, name: str) -> set[Role]:
    listed = next((model.backends for model in settings.models if model.name == name), ())
    return {backend.role for backend in settings.backends if backend.name in listed}


def _check_routes(settings: RouterSettings, problems: Problems) -> None:
    models = [model.name for model in settings.models]
    for route in settings.routes:
        where = f"routes.{route.name}.model"
        if route.model is None:
            continue
        if route.model not in models:
            problems.unknown(where, "model", route.model, models)
        elif "embeddings" in _roles(settings, route.model):
            problems.add(where, f"is {route.model}, which makes embeddings and answers nothing")


def _check_twins(settings: RouterSettings, plans: Plans, problems: Problems) -> None:
    backends = {backend.name: backend for backend in settings.backends}
    for twin in settings.backends:
        if twin.twin_of is None:
            continue
        where = f"backends.{twin.name}.twin_of"
        other = backends.get(twin.twin_of)
        if other is None:
            problems.unknown(where, "backend", twin.twin_of, [name for name in backends if name != twin.name])
        elif other is twin:
            problems.add(where, "is the backend itself; a twin is another one, with the same model")
        elif other.twin_of is not None:
            problems.add(where, f"is {other.name}, which is a twin itself; name the one that speculates")
        else:
            _check_pair(settings, twin, other, plans, where, problems)


def _check_pair(
    settings: RouterSettings,
    twin: BackendSettings,
    other: BackendSettings,
    plans: Plans,
    where: str,
    problems: Problems,
) -> None:
    theirs, ours = _model_of(other, plans), _model_of(twin, plans)
    if theirs is not None and ours is not None and theirs[0] != ours[0]:
        problems.add(where, f"is {other.name}, which has another model: {theirs[1]}, this one {ours[1]}")
    if twin.role != other.role:
        problems.add(where, f"is {other.name}, whose role is {other.role}, not {twin.role}")
    for model in settings.models:
        if twin.name in model.backends and other.name not in model.backends:
            problems.add(where, f"is {other.name}, which does not serve {model.name} as this one does")
    plan = plans.get(twin.name)
    if plan is not None and plan.choice.method != "none":
        problems.add(where, f"wants a plan without speculation; this one drafts ({plan.choice.method}): --spec none")


def _model_of(backend: BackendSettings, plans: Plans) -> tuple[str, str] | None:
    """Return which model a backend has, in a form to compare and as the file names it; None: it is not said."""
    plan = plans.get(backend.name)
    named = backend.model if plan is None else plan.choice.model
    if named is None:
        return None
    try:
        return knowledge().model(named).name, named
    except UserError:
        return named.casefold(), named


def _check_places(settings: RouterSettings, plans: Plans, problems: Problems) -> None:
    """Check that all servers are different ones, and none is the router."""
    server = settings.server
    seen: dict[tuple[str, int], list[BackendSettings]] = defaultdict(list)
    for backend in settings.backends:
        if backend.url is None:
            continue
        where = f"backends.{backend.name}"
        if is_place_of(backend.url, server.host, server.port):
            what = "the port of its plan is" if backend.name in plans else "its url is"
            problems.add(where, f"is the router itself: {what} where the router listens, port {server.port}")
        seen[place_of(backend.url)].append(backend)
    for (host, port), found in seen.items():
        for at, backend in enumerate(found[1:], 1):
            where = f"backends.{backend.name}"
            for before in found[:at]:
                is_one = backend.name in plans or before.name in plans
                if is_one or (_path(backend), backend.model) == (_path(before), before.model):
                    problems.add(where, f"is at {host}:{port}, as {before.name} is; a server is one backend")
    _check_deployments(plans, problems)


def _path(backend: BackendSettings) -> str:
    return urlsplit(backend.url or "").path


def _check_deployments(plans: Plans, problems: Problems) -> None:
    by_name: dict[str, str] = {}
    by_port: dict[tuple[str | None, int], str] = {}
    for name, plan in plans.items():
        choice = plan.choice
        before = by_name.setdefault(choice.name, name)
        at = by_port.setdefault((choice.nodes[0].ssh, choice.port), name)
        if before != name:
            problems.add(f"backends.{name}.plan", f"is of the deployment {choice.name}, as that of {before} is")
        elif at != name:
            where = choice.nodes[0].ssh or "this machine"
            problems.add(f"backends.{name}.plan", f"wants port {choice.port} of {where}, as that of {at} does")


def _check_plan(
    settings: RouterSettings, name: str, plan: Plan, environ: Mapping[str, str], problems: Problems
) -> None:
    backend = next(one for one in settings.backends if one.name == name)
    where = f"backends.{name}"
    try:
        secrets_of(plan, environ)
    except UserError as error:
        problems.add(f"{where}.plan:", str(error))
    if backend.role != plan.choice.role:
        problems.add(f"{where}.role", f"is {backend.role}, its plan is for {plan.choice.role}")
    if backend.engine != plan.choice.engine:
        problems.add(f"{where}.engine", f"is {backend.engine}, its plan starts {plan.choice.engine}")
    ready = plan.emission.readiness.model
    if backend.model != ready:
        problems.add(f"{where}.model", f"is {backend.model}, the server of its plan calls it {ready}")


def _check_server(settings: RouterSettings, problems: Problems) -> None:
    server = settings.server
    checks: tuple[tuple[str, Callable[[str | None], object], str | None], ...] = (
        ("api_key", digests, server.api_key),
        ("cors", origins, server.cors),
        ("allowed_hosts", allowed_hosts, server.allowed_hosts),
    )
    for key, parse, value in checks:
        try:
            parse(value)
        except UserError as error:
            problems.add(f"server.{key}:", str(error))
