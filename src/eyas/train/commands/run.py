"""`eyas train run` and `eyas train resume`: trains a head by a settings file, to its end or until Ctrl-C."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyas.train.settings.schema import RunSettings

__all__ = ["EngineEvaluation", "add_arguments", "run"]

# Measures the acceptance of a head's folder with a real engine: figures for the model card, by temperature.
EngineEvaluation = Callable[["RunSettings", Path], list[dict[str, Any]]]
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="settings file; `eyas train init` writes one")
    parser.add_argument(
        "overrides", nargs="*", metavar="SECTION.KEY=VALUE", help="settings in place of those of the file"
    )


def run(args: argparse.Namespace, *, resume: bool, evaluate: EngineEvaluation | None = None) -> int:
    """Train, export the best head, and measure it with an engine where the settings name prompts."""
    import torch

    from eyas.model.devices import pick_device
    from eyas.train.commands.export import export_checkpoint
    from eyas.train.loop.parts import open_run, prepare_run
    from eyas.train.loop.processes import joined_processes
    from eyas.train.loop.progress import Progress
    from eyas.train.loop.run import train
    from eyas.train.loop.run_folder import RunFolder
    from eyas.train.settings.reading import as_plain, read_settings

    settings = read_settings(args.file, args.overrides)
    folder, plain = RunFolder(Path(settings.out)), as_plain(settings)
    if resume:
        folder.settings()  # complains before anything is loaded
    device, _ = pick_device(settings.target.device)
    with joined_processes(device) as processes:
        progress = Progress(0, every=settings.train.log_every, silent=not processes.is_first)
        prepared = prepare_run(settings)
        with folder.taken(processes):
            parts = open_run(prepared, processes, say=progress.say)
            if processes.is_first:
                folder.check(plain, parts.facts) if resume else folder.begin(
                    plain, parts.facts, parts.head, parts.notes
                )
            progress.num_steps = parts.num_steps
            outcome = train(parts, folder.path, processes, resume=resume, progress=progress)
            if not outcome.is_whole:
                progress.say(f"stopped after step {outcome.step}; go on with: eyas train resume {args.file}")
                return INTERRUPTED
            if processes.is_first:
                head = export_checkpoint(folder.path, folder.path / "head")
                progress.say(f"exported {head}")
                if settings.eval.prompts is not None and evaluate is not None:
                    del parts
                    if torch.cuda.is_available():
                        torch.cuda.empty_cache()
                    for result in evaluate(settings, head):
                        progress.say(json.dumps(result))
    return 0
