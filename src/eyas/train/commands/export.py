"""`eyas train export`: writes a checkpoint of a run as a head that engines load."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["add_arguments", "export_checkpoint", "run"]

FORMS, ENGINES, DTYPES = (
    ("midlayer", "speculators"),
    ("eyas", "vllm", "sglang", "tensorrt-llm"),
    ("bfloat16", "float32"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run: `out` of its settings")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint; the best one if not given, else the newest")
    parser.add_argument(
        "--form", choices=FORMS,
        help="names of tensors and keys: 'midlayer', which every engine loads, or 'speculators' (default: midlayer "
        "where the engine finds the head's taps without doubt)",
    )  # fmt: skip
    parser.add_argument(
        "--engine", choices=ENGINES, default="eyas",
        help="engine whose reading of tap ids counts, where a head has other taps than the default (default: eyas)",
    )  # fmt: skip
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the weights (default: bfloat16)")


def run(args: argparse.Namespace) -> int:
    path = export_checkpoint(args.run, args.out, step=args.step, form=args.form, engine=args.engine, dtype=args.dtype)
    print(f"wrote {path}; try it with: eyas serve TARGET --draft {path}")
    return 0


def export_checkpoint(
    run: Path,
    out: Path,
    *,
    step: int | None = None,
    form: Any = None,
    engine: Any = "eyas",
    dtype: Any = "bfloat16",
) -> Path:
    """Write a checkpoint of a run, by default the best, as a head with its model card. Raises UserError."""
    from eyas.train.export.card import Facts
    from eyas.train.export.config import form_for
    from eyas.train.export.head import export_head
    from eyas.train.heads.registry import find_making
    from eyas.train.loop.prepared import target_name
    from eyas.train.records.checkpoints import Checkpoints
    from eyas.train.records.run_folder import RunFolder
    from eyas.train.settings.reading import parse_settings
    from eyas.train.states.opening import find_target

    folder = RunFolder(run)
    settings = parse_settings(folder.settings(), source=str(folder.record))
    checkpoints = Checkpoints(run / "checkpoints", keep=settings.train.keep)
    checkpoint = checkpoints.load(checkpoints.best_step() if step is None else step)
    fields, fixed = folder.head()
    ids_V = fixed.pop("target_ids_V")
    notes, config = folder.notes(), find_making(settings.head.kind).read_config(fields)
    target = find_target(target_name(settings.target), device="cpu").config
    return export_head(
        config,
        checkpoint.head,
        ids_V,
        out,
        form=form or form_for(config, engine, target),
        target=target,
        facts=Facts(
            target=settings.target.model,
            data=notes["chats"],
            data_hash=notes["set of chats"],
            steps=checkpoint.step,
            settings=_dotted(folder.settings()),
            hardware=notes["hardware"],
            evaluation=_evaluation(run / "evaluation.json", checkpoint.step),
            draft_tokens=settings.eval.draft_tokens,
        ),
        engine=engine,
        dtype=dtype,
        embed_VH=fixed.get("embed_tokens.weight"),
    )


def _evaluation(path: Path, step: int) -> dict[str, Any] | None:
    """Return the evaluation of the best checkpoint, if that is the one of `step`."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found if found.pop("step") == step else None


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted name."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _dotted(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found
