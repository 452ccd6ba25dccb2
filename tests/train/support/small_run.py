"""A run of the demo model on a few chats, small enough for a test, in this process."""

import json
from pathlib import Path

import yaml

from eyas import cli

ROOT = Path(__file__).parents[3]
CHATS = ROOT / "examples" / "train" / "demo_chats.jsonl"
BUNDLED = ROOT / "src" / "eyas" / "demo" / "eagle3"


def write_chats(path, chats):
    path.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    return path


def example_chats(count):
    """Return the first chats of the example."""
    return [json.loads(line) for line in CHATS.read_text().splitlines()[:count]]


def write_settings(folder, **sections):
    """Write run.yaml into `folder`, with 12 chats, and `sections` over the defaults of a small run; return its path."""
    chats = folder / "chats.jsonl"
    if not chats.exists():
        write_chats(chats, example_chats(12))
    content = {
        "target": {"model": "demo", "device": "cpu"},
        "head": {"draft_vocab": 256, "intermediate_size": 64, "num_heads": 2, "num_kv_heads": 1},
        "data": {"chats": str(chats), "held_out_share": 0.3, "context": 400},
        "states": {"cache": "100MiB"},
        "train": {"steps": 3, "depths": 2, "lr": 2e-3, "save_every": 1, "log_every": 1},
        "eval": {"documents": 2},
        "out": str(folder / "out"),
    }
    for name, section in sections.items():
        content[name] = {**content[name], **section} if isinstance(section, dict) else section
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def train(command, *arguments):
    """Run `eyas train COMMAND`; return its exit code."""
    return cli.main(["train", command, *map(str, arguments)])


def contents(folder):
    """Return the bytes of all files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
