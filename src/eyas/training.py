"""`eyas train run`, `resume` and `eval`: the composition root of training, which hands it the engine for measuring."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyas.train.settings.schema import RunSettings

__all__ = ["evaluation", "resume", "run"]

MAX_TOKENS = 256  # of an answer
TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class _Training:
    """A command that trains."""

    resume: bool

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from eyas.train.commands.run import add_arguments

        add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        from eyas.train.commands import run as command

        return command.run(args, resume=self.resume, evaluate=engine_acceptance)


class _Evaluation:
    """A command that evaluates."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        from eyas.train.commands.eval import add_arguments

        add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        from eyas.train.commands import eval as command

        return command.run(args, evaluate=engine_acceptance)


run, resume, evaluation = _Training(resume=False), _Training(resume=True), _Evaluation()


def engine_acceptance(settings: RunSettings, head: str) -> list[dict[str, Any]]:
    """Let the engine answer the run's prompts with a head, and return what `eyas bench acceptance` counts."""
    from eyas.base.settings.config import EngineConfig
    from eyas.bench.engine.acceptance import measure

    assert settings.eval.prompts is not None
    target = settings.target
    config = EngineConfig(
        model=target.model,
        revision=target.revision,
        offline=target.offline,
        device=target.device,
        draft=head,
        draft_tokens=settings.eval.draft_tokens,
    )
    return measure(config, Path(settings.eval.prompts), temperatures=TEMPERATURES, max_tokens=MAX_TOKENS)
