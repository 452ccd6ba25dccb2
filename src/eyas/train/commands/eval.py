"""`eyas train eval`: the acceptance of a run's checkpoint, or of any head, on held-out chats."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eyas.train.commands.run import EngineEvaluation

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="settings file of the run")
    parser.add_argument(
        "overrides", nargs="*", metavar="SECTION.KEY=VALUE",
        help="settings in place of those of the file; head.init=HEAD evaluates a head instead of the run's",
    )  # fmt: skip
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint; the best one if not given")


def run(args: argparse.Namespace, *, evaluate: EngineEvaluation | None = None) -> int:
    """Evaluate, and let an engine answer `eval.prompts` where the settings name them. One JSON line last."""
    from eyas.base.errors import UserError
    from eyas.train.commands.export import export_checkpoint
    from eyas.train.commands.run import engine_line
    from eyas.train.evaluation.evaluate import evaluate as on_chats
    from eyas.train.loop.parts import open_run
    from eyas.train.loop.prepared import prepare_run
    from eyas.train.records.checkpoints import Checkpoints
    from eyas.train.records.run_folder import RunFolder
    from eyas.train.settings.reading import as_plain, read_settings
    from eyas.train.steps.processes import Processes

    settings = read_settings(args.file, args.overrides)
    folder, is_other = (
        RunFolder(Path(settings.out)),
        any(text.strip().startswith("head.init=") for text in args.overrides),
    )
    if is_other and args.step is not None:
        raise UserError("--step names a checkpoint of the run, and head.init another head; give one of them")
    checkpoint = None
    if not is_other:
        folder.check_settings(as_plain(settings), part="head")
        checkpoints = Checkpoints(folder.path / "checkpoints", keep=settings.train.keep)
        checkpoint = checkpoints.load(checkpoints.best_step() if args.step is None else args.step)
    prepared = prepare_run(settings)
    if not prepared.held_out:
        raise UserError("no chats are held out: name files in data.held_out, or give data.held_out_share")
    parts = open_run(prepared, Processes(), say=print)
    if checkpoint is not None:
        folder.check_facts({name: parts.facts[name] for name in ("vocabulary", "target")})
        parts.head.load_state_dict(dict(checkpoint.head))
        print(f"checkpoint of step {checkpoint.step}")
    temperature = None if parts.exact_source.labels_only else 1.0
    found = on_chats(parts.head, parts.exact_source, parts.held_out_batches(), temperature=temperature)
    print("\n".join(found.lines(min(settings.eval.draft_tokens, parts.head.num_depths))))
    result = {"step": None if checkpoint is None else checkpoint.step, **found.json()}
    if settings.eval.prompts is not None and evaluate is not None:
        with TemporaryDirectory() as scratch:
            head = settings.head.init
            if checkpoint is not None:
                head = str(export_checkpoint(folder.path, Path(scratch) / "head", step=checkpoint.step))
            result["engine"] = evaluate(settings, str(head))
        for one in result["engine"]:
            print(engine_line(one, settings.eval.draft_tokens))
    print(json.dumps(result))
    return 0
