"""The Anthropic API as a dialect, over our engine or over any other answers."""

from __future__ import annotations

from eyas.gateway.anthropic.errors import ERROR_SCHEMA, ERRORS
from eyas.gateway.anthropic.operations import OPERATIONS
from eyas.gateway.anthropic.routes import HELLO_PATH, PATH, Answers, message_routes
from eyas.gateway.question.engine_answers import EngineAnswers
from eyas.gateway.server.dialect import Dialect

__all__ = ["ANTHROPIC", "dialect"]


def dialect(answers: Answers = EngineAnswers) -> Dialect:
    """Return the dialect whose questions `answers(context)` answers."""
    return Dialect(
        name="anthropic",
        paths=(PATH, HELLO_PATH),
        routes=lambda context: message_routes(context, answers),
        errors=ERRORS,
        error_schema=ERROR_SCHEMA,
        operations=OPERATIONS,
        id_header="request-id",
    )


ANTHROPIC = dialect()
