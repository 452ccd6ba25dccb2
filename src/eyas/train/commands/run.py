"""`eyas train run` and `eyas train resume`: trains a head by a settings file, to its end or until Ctrl-C."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyas.train.settings.schema import RunSettings

__all__ = ["EngineEvaluation", "add_arguments", "engine_line", "run"]

# Measures the acceptance of a head (folder or hub id) with a real engine: figures for the model card, by temperature.
EngineEvaluation = Callable[["RunSettings", str], list[dict[str, Any]]]
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="settings file; `eyas train init` writes one")
    parser.add_argument(
        "overrides", nargs="*", metavar="SECTION.KEY=VALUE", help="settings in place of those of the file"
    )


def engine_line(result: dict[str, Any], draft_tokens: int) -> str:
    """Return a line for people of one temperature's figures."""
    found = result["content"]
    if found is None:
        return f"engine, temperature {result['temperature']:g}: no content"
    low, high = found["ci95"]
    return (
        f"engine, temperature {result['temperature']:g}, {draft_tokens} drafts a round: acceptance length "
        f"{found['acceptance_length']:.2f} (95 % {low:.2f}..{high:.2f})"
    )


def run(args: argparse.Namespace, *, resume: bool, evaluate: EngineEvaluation | None = None) -> int:
    """Train, export the best head, and measure it with an engine where the settings name prompts. Raises UserError."""
    import torch

    from eyas.model.devices import grow_segments, pick_device
    from eyas.train.commands.export import export_checkpoint
    from eyas.train.export.config import form_for
    from eyas.train.loop.parts import open_run
    from eyas.train.loop.prepared import prepare_run
    from eyas.train.loop.run import train
    from eyas.train.records.metrics import check_tensorboard
    from eyas.train.records.progress import Progress
    from eyas.train.records.run_folder import RunFolder
    from eyas.train.settings.reading import as_plain, read_settings
    from eyas.train.steps.processes import joined_processes, local_device

    settings = read_settings(args.file, args.overrides)
    folder, plain = RunFolder(Path(settings.out)), as_plain(settings)
    if settings.train.tensorboard:
        check_tensorboard()
    own = local_device(settings.target.device)
    settings = replace(settings, target=replace(settings.target, device=own))
    grow_segments()
    device, _ = pick_device(own)
    with joined_processes(device) as processes, folder.taken(processes):
        if resume:
            folder.check_settings(plain)
        elif processes.is_first:
            folder.check_new()
        with Progress(every=settings.train.log_every, silent=not processes.is_first) as progress:
            parts = open_run(prepare_run(settings), processes, say=progress.say)
            form_for(parts.head.config, "eyas", parts.source.config)  # complains before the training does its work
            if resume:
                folder.check_facts(parts.facts)
            elif processes.is_first:
                folder.begin(plain, parts.facts, parts.head, parts.notes)
            outcome = train(parts, folder.path, processes, resume=resume, progress=progress)
            if not outcome.is_whole:
                again = shlex.join(["eyas", "train", "resume", str(args.file), *args.overrides])
                progress.say(f"stopped after step {outcome.step}; go on with: {again}")
                return INTERRUPTED
            if processes.is_first:
                head = export_checkpoint(folder.path, folder.new_head())
                progress.say(f"exported {head}")
                if settings.eval.prompts is not None and evaluate is not None:
                    del parts
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()
                    for result in evaluate(settings, str(head)):
                        progress.say(engine_line(result, settings.eval.draft_tokens))
    return 0
