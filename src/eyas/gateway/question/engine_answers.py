"""The port to the local engine: a question becomes token ids, a grammar and a Turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eyas.base.types import ModelInfo, Request, SamplingParams
from eyas.gateway.question.prompt import num_prompt_ids, prompt_ids
from eyas.gateway.question.question import Question
from eyas.gateway.question.tools import bind
from eyas.gateway.server.context import Context
from eyas.gateway.turn.readers import HarmonyReader
from eyas.gateway.turn.stops import Stops
from eyas.gateway.turn.turn import Turn

__all__ = ["EngineAnswers", "EngineQuestion"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineQuestion:
    """A question in the engine's form. `functions` are the names that count as calls when the answer is read."""

    request: Request
    functions: frozenset[str]
    stops: Stops
    bound_by: str | None  # the field that binds the answer to a grammar

    def with_params(self, params: SamplingParams) -> EngineQuestion:
        """Return the question with other sampling parameters: a dialect's own, such as token ids."""
        return replace(self, request=replace(self.request, params=params))


class EngineAnswers:
    """An AnswerPort over the engine of `context`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def prepare(self, question: Question) -> EngineQuestion:
        fields = question.fields
        binding = bind(
            self._context.checker,
            question.offer,
            question.answer_format,
            answer_param=fields.answer_format,
            parameters=fields.schemas,
        )
        return EngineQuestion(
            request=Request(
                request_id=question.request_id,
                prompt_ids=prompt_ids(
                    self._context, question.conversation, param=fields.prompt, newest=question.newest
                ),
                params=replace(question.params, grammar=binding.grammar),
                cache_salt=question.cache_salt,
            ),
            functions=question.offer.functions,
            stops=question.stops,
            bound_by=binding.param,
        )

    def ask(self, prepared: EngineQuestion, *, route: str) -> Turn:
        """Submit the request; returns the Turn that reads its answer."""
        return Turn(
            self._context,
            prepared.request,
            lambda: HarmonyReader(self._context.codec, prepared.functions),
            route=route,
            stops=prepared.stops,
            param=prepared.bound_by,
        )

    def count(self, question: Question) -> int:
        return num_prompt_ids(self._context, question.conversation, param=question.fields.prompt)

    def models(self) -> Sequence[ModelInfo]:
        return (self._context.info,)
