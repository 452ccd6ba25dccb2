"""Regenerates a file of chats: a bounded number at once, each written as soon as it is finished."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from eyas.base.errors import EyasError, UserError
from eyas.sandbox.sandbox import find_sandbox
from eyas.sandbox.tool import PythonTool
from eyas.train.regeneration.endpoint import Endpoint, EndpointError, Sampling
from eyas.train.regeneration.progress import Progress
from eyas.train.regeneration.prompts import Prompt, PromptFile, scan
from eyas.train.regeneration.results import Results
from eyas.train.regeneration.turns import Refused, regenerate

__all__ = ["Job", "run"]

MAX_FIRST_REFUSALS = 8  # without a single answer: the endpoint takes no request of this form
SHOWN_FAILURES = 3
INTERRUPTED = 130


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A regeneration as it was asked for. `sampling.model` is empty for the endpoint's first."""

    prompts: Path
    out: Path
    url: str
    key: str | None = field(repr=False)
    sampling: Sampling
    concurrency: int
    patience: float  # s
    timeout: float  # s
    limit: int | None
    python: bool = False  # offer a python tool, and run its calls in a sandbox


def run(job: Job, *, out: TextIO | None = None, log: TextIO | None = None) -> int:
    """Answer all chats that are not answered yet; return the exit code: 0, or 130 after SIGINT.

    Raises UserError, one line: a bad file, other settings than those of the same output before, an endpoint that is
    dead or refuses. What is finished by then is kept, and the same command goes on.
    """
    out, log = out or sys.stdout, log or sys.stderr
    prompts = scan(job.prompts, limit=job.limit)
    sampling = replace(job.sampling, model=asyncio.run(_model(job)))
    with Results(
        job.out, num_lines=prompts.num_lines, described=_described(prompts, sampling, python=job.python)
    ) as results:
        progress = Progress(log, total=prompts.num_chats, before=results.counts)
        try:
            asyncio.run(_regenerate_all(job, sampling, prompts, results, progress))
        except KeyboardInterrupt:
            progress.close()
            print(progress.line(results.counts), file=out)
            print(f"interrupted; {_goes_on(job, prompts, results)}", file=log)
            return INTERRUPTED
        except EyasError as error:
            progress.close()
            raise UserError(f"{error}; {_goes_on(job, prompts, results)}") from None
        progress.close()
        if not results.counts.answers:
            raise UserError(f"no chat has an answer to keep: {progress.line(results.counts)}")
        print(progress.line(results.counts), file=out)
        if progress.failed:
            print("the same command asks those that failed again", file=log)
    return 0


def _described(prompts: PromptFile, sampling: Sampling, *, python: bool) -> dict[str, object]:
    """Return what decides answers, for the file beside the output. The number of chats (`limit`) may grow."""
    return {"sha256 of the prompts": prompts.sha256, **asdict(sampling), **({"python": True} if python else {})}


def _goes_on(job: Job, prompts: PromptFile, results: Results) -> str:
    return f"{results.num_done} of {prompts.num_chats} chats are done ({job.out}), and the same command goes on"


async def _model(job: Job) -> str:
    async with _endpoint(job) as endpoint:
        return await endpoint.model(job.sampling.model)


def _endpoint(job: Job, progress: Progress | None = None) -> Endpoint:
    def note(reason: str) -> None:
        if progress is not None:
            progress.note(f"waiting for {job.url}: {reason}")

    return Endpoint(
        job.url,
        key=job.key,
        concurrency=job.concurrency,
        patience=job.patience,
        timeout=job.timeout,
        on_wait=note,
    )


async def _regenerate_all(
    job: Job, sampling: Sampling, prompts: PromptFile, results: Results, progress: Progress
) -> None:
    """Let `concurrency` workers take chats in their order; the first error that is not a chat's own ends all."""
    left = prompts.prompts(results.is_done)
    errors: list[EyasError] = []
    tool = PythonTool(await find_sandbox()) if job.python else None
    async with _endpoint(job, progress) as endpoint:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(job.concurrency):
                    group.create_task(_work(job, sampling, left, endpoint, results, progress, tool))
        except* EyasError as group_of_errors:
            errors = [error for error in group_of_errors.exceptions if isinstance(error, EyasError)]
    if errors:
        raise errors[0]


async def _work(
    job: Job,
    sampling: Sampling,
    left: Iterator[Prompt],
    endpoint: Endpoint,
    results: Results,
    progress: Progress,
    tool: PythonTool | None,
) -> None:
    for recorded in left:
        prompt = recorded if tool is None else _offered(recorded, tool)
        execute = {} if tool is None else {tool.name: tool.call}
        try:
            chat = await regenerate(prompt, partial(endpoint.ask, prompt, sampling), execute)
        except Refused as error:
            progress.failed += 1
            if progress.failed <= SHOWN_FAILURES:
                progress.note(f"{job.prompts}:{prompt.line}: {error}")
            if progress.failed >= MAX_FIRST_REFUSALS and not results.counts.answers:
                raise EndpointError(f"{job.url} answered none of {progress.failed} chats ({error})") from None
        else:
            results.add(chat, effort=sampling.effort or prompt.effort)
        progress.show(results.counts)


def _offered(prompt: Prompt, tool: PythonTool) -> Prompt:
    """Return the prompt with the tool among those that it offers; one of its own with that name gives way."""
    others = [other for other in prompt.tools or () if other.get("function", {}).get("name") != tool.name]
    return replace(prompt, tools=[*others, dict(tool.definition)])
