"""An endpoint that is measured: its address, key and fields of requests, and what it says of itself.

`identify` asks `GET /v1/models`, then what names the engine and its version: `/version` (ours, vLLM, TensorRT-LLM),
`/server_info` (SGLang), `/props` (llama-server), `/api/version` (Ollama). `owned_by` is each engine's own word in its
list of models, read in the sources of SGLang 0.5, vLLM 0.14, TensorRT-LLM 1.3 and llama.cpp 0.5.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Struct

from eyas.base.errors import UserError
from eyas.base.serving.engines import OWNERS, EngineName
from eyas.client.refusals import INVALID_JSON

__all__ = ["Arm", "Endpoint", "identify", "root_of"]

TIMEOUT_S = 10.0
MAX_SHOWN = 200
# Where engines say their version, and under which name.
VERSIONS: dict[EngineName, tuple[tuple[str, str], ...]] = {
    "eyas": (("/version", "version"),),
    "vllm": (("/version", "version"),),
    "tensorrt-llm": (("/version", "version"),),
    "sglang": (("/server_info", "version"), ("/get_server_info", "version")),
    "llama.cpp": (("/props", "build_info"),),
    "ollama": (("/api/version", "version"),),
}


class Arm(Struct, frozen=True, kw_only=True):
    """One side of a comparison: `url` with `/v1` or without, and what all of its requests have in common.

    `model` None is the endpoint's first. Two arms may share an endpoint and differ in `fields` of their bodies.
    """

    name: str
    url: str
    model: str | None = None
    key: str | None = None
    fields: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"Arm({self.name!r}, {self.url!r}, model={self.model!r})"


class Endpoint(Struct, frozen=True, kw_only=True):
    """Answer of an arm's endpoint to who it is; None is what it does not say. `root` is its address without `/v1`."""

    root: str
    model: str
    engine: EngineName | None = None
    version: str | None = None
    commit: str | None = None
    is_here: bool = False  # on this machine
    simulated: str = ""

    def shown(self) -> dict[str, str]:
        """Return what is known, for a Stamp."""
        fields = {"url": self.root, "engine": self.engine, "version": self.version, "commit": self.commit}
        return {name: value for name, value in {**fields, "model": self.model}.items() if value}

    def text(self) -> str:
        """Format for people."""
        engine = " ".join(filter(None, (self.engine, self.version, self.commit and f"(commit {self.commit})")))
        return f"{self.root}, {engine or 'an engine that does not say its name'}, model {self.model}"


class _Model(Struct):
    id: str
    owned_by: Any = None


class _Models(Struct):
    data: list[_Model] = []


def root_of(url: str) -> str:
    """Return the address without `/v1` and what follows it. Raises UserError."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        shown = url.rpartition("@")[2].partition("?")[0]
        raise UserError(f"'{shown}' is no address of an endpoint; give one such as http://127.0.0.1:8000/v1")
    path = parts.path.rstrip("/")
    for suffix in ("/chat/completions", "/completions"):
        path = path.removesuffix(suffix)
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix('/v1')}"


def identify(arm: Arm, *, transport: httpx.BaseTransport | None = None) -> Endpoint:
    """Ask an endpoint who it is. Raises UserError where it does not answer, refuses the key, or names no model."""
    root = root_of(arm.url)
    headers = {} if arm.key is None else {"Authorization": f"Bearer {arm.key}"}
    with httpx.Client(
        base_url=root, headers=headers, timeout=TIMEOUT_S, trust_env=False, transport=transport
    ) as client:
        response = _models(client, arm.name)
        try:
            models = msgspec.json.decode(response.content, type=_Models).data if response.status_code == 200 else []
        except INVALID_JSON:
            models = []
        model = arm.model or (models[0].id if models else None)
        if model is None:
            raise UserError(f"{arm.name}: {root} names no model at /v1/models; name one with --model")
        engine = _engine(models, response, client)
        version, commit = _version(engine, client)
    return Endpoint(
        root=root,
        model=model,
        engine=engine,
        version=version,
        commit=commit,
        is_here=_is_here(urlsplit(root).hostname or ""),
        simulated=_simulated(engine, model, response.text),
    )


def _models(client: httpx.Client, name: str) -> httpx.Response:
    try:
        response = client.get("/v1/models")
    except httpx.TimeoutException:
        raise UserError(f"{name}: {client.base_url} does not answer within {TIMEOUT_S:g} s; is it loading?") from None
    except httpx.HTTPError as error:
        why = " ".join(str(error).split())[:MAX_SHOWN] or type(error).__name__
        raise UserError(
            f"{name}: no answer from {client.base_url} ({why}); start the server, or correct the URL"
        ) from None
    if response.status_code in (401, 403):
        raise UserError(f"{name}: {client.base_url} refuses the key ({response.status_code}); give it with --api-key")
    if response.status_code >= 500:
        said = " ".join(response.text.split())[:MAX_SHOWN]
        raise UserError(
            f"{name}: {client.base_url} answers {response.status_code} ({said}); ask again when it is ready"
        )
    return response


def _engine(models: list[_Model], response: httpx.Response, client: httpx.Client) -> EngineName | None:
    owners = {str(model.owned_by) for model in models}
    found = next((engine for owner, engine in OWNERS.items() if owner in owners), None)
    if found is not None:
        return found
    if "llama.cpp" in response.headers.get("server", ""):
        return "llama.cpp"
    for engine in ("llama.cpp", "ollama", "sglang"):  # their paths are theirs alone
        if _version(engine, client)[0] is not None:
            return engine
    return None


def _version(engine: EngineName | None, client: httpx.Client) -> tuple[str | None, str | None]:
    """Return version and commit, as far as the engine says them."""
    for path, name in () if engine is None else VERSIONS[engine]:
        try:
            said = client.get(path).raise_for_status().json()
        except (httpx.HTTPError, ValueError):
            continue
        if isinstance(said, dict) and isinstance(said.get(name), str):
            commit = said.get("commit")
            return said[name][:MAX_SHOWN], commit[:MAX_SHOWN] if isinstance(commit, str) else None
    return None, None


def _is_here(host: str) -> bool:
    """Return whether a host name means this machine: one of its addresses can be bound."""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    for address in addresses:
        if ipaddress.ip_address(str(address).partition("%")[0]).is_loopback:
            return True
        family = socket.AF_INET6 if ":" in str(address) else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                continue
            return True
    return False


def _simulated(engine: EngineName | None, model: str, models: str) -> str:
    if engine == "eyas" and (model == "null" or model.startswith("null:")):
        return "SIMULATED: no model, the answers are made up"
    return "SIMULATED: the endpoint says so of its model" if "SIMULATED" in models else ""
