"""The ASGI app: the routes of all dialects over one engine."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp

from eyas.base.ports import EnginePort
from eyas.base.tokens.remembering import RememberingCodec
from eyas.base.tokens.tokenizer import TextCodec
from eyas.gateway.anthropic.dialect import ANTHROPIC
from eyas.gateway.grammar.checker import GrammarChecker
from eyas.gateway.http.bare_app import bare_app
from eyas.gateway.http.intake import Intake
from eyas.gateway.openai.dialect import OPENAI
from eyas.gateway.operation import health
from eyas.gateway.operation.operation import Operation
from eyas.gateway.page import live
from eyas.gateway.server.context import Context, GatewayOptions
from eyas.gateway.server.dialect import Dialect, Dialects
from eyas.gateway.server.steps import StepHub

__all__ = ["DIALECTS", "create_app"]

DIALECTS = (OPENAI, ANTHROPIC)  # errors on paths that belong to none have the first one's format


def create_app(
    engine: EnginePort,
    codec: TextCodec,
    options: GatewayOptions | None = None,
    *,
    dialects: Sequence[Dialect] = DIALECTS,
) -> ASGIApp:
    """Return the ASGI app that serves `engine`. One app serves one event loop."""
    options = options or GatewayOptions()
    context = Context(
        engine=engine,
        codec=RememberingCodec(codec),
        options=options,
        steps=StepHub(engine),
        checker=GrammarChecker(options.tokenizer_json),
        intake=Intake(options.max_body),
    )
    operation = Operation(context, Dialects(dialects))
    app = bare_app(
        [
            *health.routes(context),
            *(route for dialect in dialects for route in dialect.routes(context)),
            *live.routes(context),
            *operation.routes(),
        ],
        operation.lifespan,
    )
    return operation.wrap(app)
