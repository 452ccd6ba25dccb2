"""Phase two: the EAGLE-3 head, by `eyas train` and head.yaml, on chats that the target answered itself.

    eyas train run tools/demo/head.yaml target=TARGET data.chats=CHATS out=OUT

does the same. Here the target's states come from `BatchedStates`, many documents at a time, and where the time left is
too short for the steps of head.yaml, there are fewer of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from answering import answer_chats, draw_chats
from data import write_rows
from states import BatchedStates
from target import TargetModel, Weights

from eyas.base.tokens.tokenizer import Tokenizer
from eyas.train.commands.export import export_checkpoint
from eyas.train.loop.parts import Parts, open_run
from eyas.train.loop.prepared import Prepared, prepare_run
from eyas.train.loop.run import train
from eyas.train.records.progress import Progress
from eyas.train.records.run_folder import RunFolder
from eyas.train.settings.reading import as_plain, read_settings
from eyas.train.settings.schema import RunSettings
from eyas.train.states.source import HiddenStates
from eyas.train.steps.processes import Processes, joined_processes
from eyas.train.steps.trainer import Trainer

__all__ = ["HEAD_YAML", "head_settings", "train_head", "train_prepared", "write_chats"]

HEAD_YAML = Path(__file__).with_name("head.yaml")
MAX_ANSWER = 192  # tokens
WAVE = 4096  # chats that are answered together
TRIED_STEPS = 12  # to learn how long one takes
SPARE = 1.05  # of the time of a step


def write_chats(
    path: Path,
    model: TargetModel,
    weights: Weights,
    codec: Tokenizer,
    *,
    count: int,
    seconds: float,
    seed: int,
    longest: int = 1024,
) -> int:
    """Write chats that the target answers, `count` of them or what it does in `seconds`; return their number."""
    began = time.perf_counter()
    generator = torch.Generator(model.embed.device).manual_seed(seed)
    rows: list[dict[str, Any]] = []
    drawn = 0
    while drawn < count and (not rows or time.perf_counter() - began < seconds):
        chats = list(draw_chats(min(WAVE, count - drawn), seed=f"own:{seed}:{drawn}"))
        drawn += len(chats)
        rows += answer_chats(model, weights, codec, chats, max_tokens=MAX_ANSWER, longest=longest, generator=generator)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, rows)
    return len(rows)


def train_head(
    model: TargetModel,
    weights: Weights,
    *,
    target: Path,
    chats: Path,
    work: Path,
    seconds: float,
    overrides: Sequence[str],
    log: Callable[[str], None],
) -> tuple[Path, dict[str, Any]]:
    """Train within about `seconds` and export; returns the head's folder and figures. Raises UserError."""
    ends = time.perf_counter() + seconds
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # what the sampling held
    settings = head_settings(target=target, chats=chats, out=work / "head", overrides=overrides)
    with joined_processes(model.embed.device) as processes:
        prepared = prepare_run(settings)
        limit = _steps_within(prepared, model, weights, processes, ends)
        if limit < (settings.train.steps or limit + 1):
            log(f"the time left is enough for {limit} steps")
            settings = replace(settings, train=replace(settings.train, steps=limit))
            prepared = replace(prepared, settings=settings)
        return train_prepared(prepared, model, weights, processes, log)


def head_settings(*, target: Path, chats: Path, out: Path, overrides: Sequence[str]) -> RunSettings:
    """Return the settings of head.yaml with these paths. Raises UserError."""
    return read_settings(HEAD_YAML, [f"target.model={target}", f"data.chats={chats}", f"out={out}", *overrides])


def train_prepared(
    prepared: Prepared, model: TargetModel, weights: Weights, processes: Processes, log: Callable[[str], None]
) -> tuple[Path, dict[str, Any]]:
    """Train all steps and export; returns the head's folder and figures. Raises UserError."""
    settings = prepared.settings
    folder = RunFolder(Path(settings.out))
    with folder.taken(processes):
        parts = _parts(prepared, model, weights, processes, log)
        folder.begin(as_plain(settings), parts.facts, parts.head, parts.notes)
        began = time.perf_counter()
        with Progress(every=settings.train.log_every) as progress:
            outcome = train(parts, folder.path, processes, resume=False, progress=progress)
        head = export_checkpoint(folder.path, folder.new_head())
    tokens = outcome.step * (settings.train.batch_tokens or settings.data.context)
    figures: dict[str, Any] = {
        "head_s": round(time.perf_counter() - began, 1),
        "head_steps": outcome.step,
        "head_tokens": tokens,
    }
    if outcome.evaluation is not None:
        figures["acceptance"] = outcome.evaluation.json()
    return head, figures


def _parts(
    prepared: Prepared, model: TargetModel, weights: Weights, processes: Processes, say: Callable[[str], None]
) -> Parts:
    parts = open_run(prepared, processes, say=say)

    def batched(source: HiddenStates) -> BatchedStates:
        return BatchedStates(model, weights, taps=source.taps, teacher=source.teacher, fingerprint=source.fingerprint)

    return replace(parts, source=batched(parts.source), exact_source=batched(parts.exact_source))


def _steps_within(prepared: Prepared, model: TargetModel, weights: Weights, processes: Processes, ends: float) -> int:
    """Return the number of steps that end in time, by the pace of some that are thrown away."""
    parts = _parts(prepared, model, weights, processes, lambda text: None)
    settings = prepared.settings
    trainer = Trainer(
        parts.head,
        parts.source,
        settings.train,
        rule=settings.data.supervise,
        num_steps=parts.num_steps,
        processes=processes,
    )
    tried = min(TRIED_STEPS, parts.num_steps)
    began = time.perf_counter()
    for number in range(tried):
        if number == tried // 2:  # the first ones allocate memory
            began = time.perf_counter()
        trainer.step(number, parts.batches(number))
    pace = (time.perf_counter() - began) / (tried - tried // 2)
    return max(1, int((ends - time.perf_counter()) / (pace * SPARE)))
