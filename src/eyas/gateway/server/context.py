"""The context of every route: the engine, the vocabulary, the options of this server."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from starlette.requests import Request as HttpRequest

from eyas.base.ports import EnginePort
from eyas.base.tokens.tokenizer import TextCodec
from eyas.base.types import ModelInfo
from eyas.gateway.grammar.checker import GrammarChecker
from eyas.gateway.http.body import Raw, weight
from eyas.gateway.http.intake import Intake
from eyas.gateway.http.outcome import Listener
from eyas.gateway.http.workers import Workers
from eyas.gateway.server.hosts import Hosts
from eyas.gateway.server.mailroom import Mailroom
from eyas.gateway.server.steps import StepHub
from eyas.gateway.server.tallies import Tallies

__all__ = ["Context", "GatewayOptions"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayOptions:
    """Options of a server. `tokenizer_json` allows checking grammars before the engine compiles them.

    `defaults` are sampling fields of the model's generation_config.json by vLLM's names, for requests without them.
    `key_digests` are SHA-256 digests of the accepted API keys; none means that no key is required. `keep_reasoning`
    leaves finished turns their reasoning, against the format, so that the prompt of a conversation only grows.
    """

    served_name: str | None = None
    key_digests: tuple[bytes, ...] = ()
    hosts: Hosts = field(default_factory=Hosts)  # loopback names
    cors_origins: tuple[str, ...] = ()
    max_body: int = 16 << 20
    live: Literal["text", "blank", "off"] = "text"
    keep_reasoning: bool = False
    defaults: Mapping[str, float] = field(default_factory=dict)
    tokenizer_json: Path | None = None
    trace: Path | None = None
    today: Callable[[], datetime.date] = datetime.date.today  # the date in the system message


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """One server. Made once by `create_app`, and passed to each dialect's `routes(context)`.

    `listeners` receive the outcome of each engine request, in the event loop; they must be quick and never raise.
    """

    engine: EnginePort
    codec: TextCodec
    options: GatewayOptions
    steps: StepHub
    checker: GrammarChecker = field(default_factory=GrammarChecker)
    mailroom: Mailroom = field(default_factory=Mailroom)
    intake: Intake = field(default_factory=Intake)
    workers: Workers = field(default_factory=Workers)
    listeners: list[Listener] = field(default_factory=list)
    tallies: Tallies = field(default_factory=Tallies)
    created: int = field(default_factory=lambda: int(time.time()))  # Unix seconds

    async def read(self, http: HttpRequest, work: Callable[[Raw], T]) -> T:
        """Return `work` of the body, computed in a thread if the body is large; the body's memory is then released."""
        async with self.intake.body(http) as raw:
            return await self.workers.run(http, weight(raw), lambda: work(raw))

    @property
    def info(self) -> ModelInfo:
        """Return the model's information, with the name that it is served under."""
        info, name = self.engine.info, self.options.served_name
        return info if name is None else replace(info, name=name)
