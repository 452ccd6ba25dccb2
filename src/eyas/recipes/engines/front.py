"""Our router in front of an engine: for Claude Code, whose messages it spoils, or for keys that it cannot ask for."""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from msgspec.structs import replace

from eyas.recipes.advice.messages import why_router
from eyas.recipes.engines.common import base_url, below
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Choice, Emission, EnvVar, File, Launch, Note, Plan, Ref, Wait

__all__ = [
    "CONFIG",
    "LAUNCH",
    "behind",
    "has_router",
    "lacks_keys",
    "model",
    "ports",
    "router_port",
    "url",
    "why_front",
    "with_router",
    "without_router",
]

LAUNCH = "router"
CONFIG = "router.yaml"
PORT = 8100


def router_port(choice: Choice) -> int:
    """Return the port of the router before an engine: its usual one, or the next where the engine has that."""
    return PORT + (choice.port == PORT)


def has_router(emission: Emission) -> bool:
    """Whether the router is one of the launches."""
    return any(launch.name == LAUNCH for launch in emission.launches)


def ports(plan: Plan) -> tuple[int, ...]:
    """Return the ports that the plan's clients and the router talk to: the server's, and the router's own."""
    return (plan.choice.port, *([router_port(plan.choice)] if has_router(plan.emission) else []))


def url(plan: Plan) -> str:
    """Return where clients on the plan's first machine reach it: the router, where one stands in front."""
    return base_url(plan.choice, router_port(plan.choice) if has_router(plan.emission) else None)


def model(plan: Plan) -> str:
    """Return the name by which clients ask for the model there."""
    return plan.choice.model if has_router(plan.emission) else plan.emission.readiness.model


def lacks_keys(choice: Choice) -> bool:
    """Whether a key is asked for that the engine's own server cannot ask its clients for."""
    return choice.api_key_env is not None and not knowledge().engines[choice.engine].api_keys


def why_front(choice: Choice) -> Note | None:
    """Return why the router stands in front, in words that follow the engine's name; None where it does not."""
    why = why_router(choice) if choice.purpose == "claude-code" else None
    if why is None and lacks_keys(choice):
        engine = knowledge().engines[choice.engine]
        return Note(text="knows no API keys", source="; ".join(engine.sources))
    return why


def behind(choice: Choice) -> Choice:
    """Return the choice that the engine gets: where the router asks for the key, only this machine reaches it."""
    if not lacks_keys(choice):
        return choice
    return replace(choice, api_key_env=None, listen="::1" if choice.listen == "::" else "127.0.0.1")


def with_router(choice: Choice, emission: Emission) -> Emission:
    """Return `emission` with the router as its first launch, where one stands in front; else as it is."""
    if why_front(choice) is None:
        return emission
    config = File(path=CONFIG, content=yaml.safe_dump(_config(choice, emission.readiness.model), sort_keys=False))
    key = choice.api_key_env
    launch = Launch(
        name=LAUNCH,
        argv=("eyas", "router", below(choice.directory, CONFIG)),
        env=() if key is None else (EnvVar(name=key, value=Ref(name=key)),),
        wait=Wait(port=router_port(choice)),
    )
    return replace(emission, launches=_behind_once(launch, emission.launches), files=(*emission.files, config))


def without_router(emission: Emission) -> Emission:
    """Return `emission` without the router, for another router that starts the engine itself."""
    launches = tuple(launch for launch in emission.launches if launch.name != LAUNCH)
    return replace(emission, launches=launches, files=tuple(file for file in emission.files if file.path != CONFIG))


def _config(choice: Choice, served: str) -> dict[str, object]:
    server: dict[str, object] = {"host": choice.listen, "port": router_port(choice)}
    backend: dict[str, object] = {"url": base_url(choice), "engine": choice.engine, "model": served}
    if choice.api_key_env is not None:
        server["api_key"] = f"env:{choice.api_key_env}"
        if not lacks_keys(choice):
            backend["key"] = server["api_key"]
    backend["concurrency"] = choice.concurrency
    return {"server": server, "backends": {"engine": backend}, "models": {choice.model: ["engine"]}}


def _behind_once(launch: Launch, others: Sequence[Launch]) -> tuple[Launch, ...]:
    """Put `launch` behind the downloads and checks at the beginning: what keeps running last is the engine's server."""
    number = next((index for index, other in enumerate(others) if not other.is_once), len(others))
    return (*others[:number], launch, *others[number:])
