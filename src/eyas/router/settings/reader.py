"""Reads a router's configuration file: strictly, and to its end, so that all that is wrong is said at once."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from msgspec import structs

from eyas.base.errors import UserError
from eyas.base.harmony.rendering import Effort
from eyas.base.serving.budgets import Budgets
from eyas.base.serving.engines import EngineName
from eyas.base.settings import values
from eyas.base.settings.config import ENV_KEY, ServeConfig, int_from, one_of
from eyas.base.settings.strict_yaml import read_yaml
from eyas.base.settings.values import Problems, Section
from eyas.fleet.preflight.plan_file import read_plan
from eyas.recipes.engines.common import base_url
from eyas.recipes.engines.front import without_router
from eyas.recipes.plan import Plan
from eyas.router.settings import places
from eyas.router.settings.check import check
from eyas.router.settings.pools import memory_of, read_pools, read_pressure
from eyas.router.settings.schema import (
    CONCURRENCY,
    ROUTES,
    BackendSettings,
    ModelSettings,
    PoolSettings,
    RouteName,
    RouterSettings,
    RouteSettings,
    ServerSettings,
)

__all__ = ["Examined", "examine"]

TOP = ("server", "backends", "models", "routes", "decide", "guard", "budgets", "max_queue", "pools", "pressure")
BACKEND = (
    *("url", "key", "plan", "role", "engine", "model", "concurrency", "twin_of", "budgets", "guard"),
    *("pool", "priority", "exclusive", "pinned", "memory", "peak"),
)
ROUTE = ("effort", "max_tokens", "model", "budgets")
SERVER = ("host", "port", "api_key", "cors", "allowed_hosts", "max_body", "drain", "log_format")
EFFORTS: dict[RouteName, Effort] = {  # all routes mean the resident model and differ in effort
    "MATH": "high",
    "SIMPLE_CODE": "low",
    "COMPLEX_CODE": "high",
    "REASONING": "high",
    "RESEARCH": "medium",
    "SELF_HANDLE": "low",
}
MAX_CONCURRENCY = 4096
GUARDS = {False: "off"}  # YAML reads the word off as a boolean
ROUTE_PREFIX = "route/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Examined:
    """A file as far as it can be understood, and all that is wrong with it. With problems it must not be used."""

    settings: RouterSettings
    plans: dict[str, Plan]  # by backend
    problems: tuple[str, ...]


def examine(path: Path, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> Examined:
    """Return a file with all of its problems; `overrides` are keys of its section `server`.

    Paths of plans are relative to the file's folder. Budgets are the file's where a backend or route has none; a
    backend with a plan has the plan's address, key, model, engine and concurrency where the file gives none. Raises
    UserError for a file that cannot be read at all.
    """
    content = read_yaml(path)
    problems = Problems()
    top = Section(content, "", TOP, problems)
    if content is None:
        problems.add("the file", "is empty; it wants backends and models")
    budgets = Budgets().with_spans(values.spans(top.get("budgets"), "budgets", problems))
    plans: dict[str, Plan] = {}
    pools = read_pools(top, problems)
    backends = tuple(
        _backend(name, entry, path.parent, budgets, environ, plans, pools, problems)
        for name, entry in top.entries("backends")
    )
    settings = RouterSettings(
        backends=backends,
        models=tuple(_model(name, entry, problems) for name, entry in top.entries("models")),
        routes=_routes(top, problems),
        decide=top.read("decide", values.scalar(one_of("classifier", "model")), "classifier"),  # type: ignore[arg-type]
        guard=top.read("guard", _guard, "observe"),  # type: ignore[arg-type]
        server=_server(top.get("server"), overrides or {}, environ, problems),
        max_queue=top.read("max_queue", values.scalar(int_from(0, 65536)), 256),
        budgets=budgets,
        pools=pools,
        memory=read_pressure(top, problems),
    )
    check(settings, plans, environ, problems)
    return Examined(settings=settings, plans=plans, problems=tuple(problems.texts))


def _backend(
    name: str,
    content: Any,
    folder: Path,
    budgets: Budgets,
    environ: Mapping[str, str],
    plans: dict[str, Plan],
    pools: tuple[PoolSettings, ...],
    problems: Problems,
) -> BackendSettings:
    where = f"backends.{name}"
    try:
        values.name(name, "backend")
    except ValueError as error:
        problems.add(where, str(error))
    section = Section(content, where, BACKEND, problems)
    if "url" not in section and "plan" not in section:
        problems.add(where, "wants a url (a server that runs) or a plan (one that is started here)")
    file = section.read("plan", lambda value: folder / Path(str(value)).expanduser(), None)
    plan = _plan(file, section, problems)
    if plan is not None:
        plans[name] = plan
    engine = None if plan is None else plan.choice.engine
    usual_role = "text" if plan is None else plan.choice.role
    return BackendSettings(
        name=name,
        url=section.read("url", values.url, None) or (None if plan is None else _url_of(plan, section)),
        key=section.read("key", values.key_in(environ), None) or _key_of(plan, environ, section),
        plan=file,
        role=section.read("role", values.scalar(one_of("text", "vision", "embeddings")), usual_role),  # type: ignore[arg-type]
        engine=section.read("engine", values.scalar(one_of(*get_args(EngineName))), engine),  # type: ignore[arg-type]
        model=section.read("model", values.text, None if plan is None else plan.emission.readiness.model),
        concurrency=section.read(
            "concurrency",
            values.scalar(int_from(1, MAX_CONCURRENCY)),
            CONCURRENCY if plan is None else plan.choice.concurrency,
        ),
        twin_of=section.read("twin_of", values.text, None),
        budgets=budgets.with_spans(values.spans(section.get("budgets"), f"{where}.budgets", problems)),
        guard=section.read("guard", _guard, None),  # type: ignore[arg-type]
        **memory_of(section, plan, pools),
    )


def _plan(file: Path | None, section: Section, problems: Problems) -> Plan | None:
    if file is None:
        return None
    try:
        plan = read_plan(file)
    except UserError as error:
        problems.add(f"{section.place('plan')}:", str(error))
        return None
    return structs.replace(plan, emission=without_router(plan.emission))  # this router stands in front of it


def _url_of(plan: Plan, section: Section) -> str | None:
    """Return the address of a plan's server as seen from here."""
    choice = plan.choice
    node = choice.nodes[0]
    if node.ssh is None:
        return base_url(choice)
    if choice.listen in places.LOOPBACK:
        section.problems.add(
            section.where,
            f"wants a url: the server of its plan listens on {choice.listen} of {node.name} only, which wants a "
            f"tunnel, e.g. ssh -N -L {choice.port}:127.0.0.1:{choice.port} {node.ssh}",
        )
        return None
    host = node.address if choice.listen in places.EVERYWHERE else choice.listen
    if host in places.LOOPBACK:
        host = node.ssh.rpartition("@")[2]
    return f"http://{f'[{host}]' if ':' in host else host}:{choice.port}"


def _key_of(plan: Plan | None, environ: Mapping[str, str], section: Section) -> str | None:
    name = None if plan is None else plan.choice.api_key_env
    if name is None or not environ.get(name):  # the check of the plan says so
        return None
    try:
        return values.key_in(environ)(f"{ENV_KEY}{name}")
    except ValueError as error:
        section.problems.add(section.place("plan"), str(error))
        return None


def _guard(value: Any) -> str:
    if isinstance(value, bool):
        value = GUARDS.get(value, "on")
    return one_of("off", "observe", "act")(str(value))


def _model(name: str, content: Any, problems: Problems) -> ModelSettings:
    where = f"models.{name}"
    try:
        values.text(name)
    except ValueError as error:
        problems.add(where, str(error))
    if name.casefold().startswith(ROUTE_PREFIX):
        problems.add(where, "begins with route/, by which requests name routes")
    listed = [content] if isinstance(content, str) else content
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        problems.add(where, f"wants a list of backends, best first, got {reprlib.repr(content)}")
        listed = None
    elif not listed:
        problems.add(where, "wants at least one backend")
    return ModelSettings(name=name, backends=tuple(listed or ()))


def _routes(top: Section, problems: Problems) -> tuple[RouteSettings, ...]:
    """Return all six routes; those of the file over the usual ones."""
    given: dict[str, Any] = {}
    for name, content in top.entries("routes"):
        if name in ROUTES:
            given[name] = content
        else:
            problems.unknown(f"routes.{name}", "route", name, ROUTES)
    found = []
    for name in ROUTES:
        section = Section(given.get(name), f"routes.{name}", ROUTE, problems)
        found.append(
            RouteSettings(
                name=name,
                effort=section.read("effort", values.scalar(one_of(*get_args(Effort))), EFFORTS[name]),  # type: ignore[arg-type]
                max_tokens=section.read("max_tokens", values.scalar(int_from(1)), 2048),
                model=section.read("model", values.text, None),
                budgets=values.spans(section.get("budgets"), section.place("budgets"), problems),
            )
        )
    return tuple(found)


def _server(
    content: Any, overrides: Mapping[str, Any], environ: Mapping[str, str], problems: Problems
) -> ServerSettings:
    """Read where the router listens; the values are those of `eyas serve`."""
    section = Section(content, "server", SERVER, problems)
    known = {item.name: item.metadata["parse"] for item in fields(ServeConfig)}
    found: dict[str, Any] = {}
    for key in SERVER:
        if key in overrides:
            found[key] = overrides[key]
            continue
        parse = values.keys_in(environ) if key == "api_key" else values.scalar(known[key])
        if (value := section.read(key, parse, None)) is not None:
            found[key] = value
    if "drain" in found:
        found["drain_s"] = float(found.pop("drain"))
    return ServerSettings(**found)
