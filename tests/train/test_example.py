"""The example of docs/train.md: its chats are small, apart from the held-out prompts, and its settings read them."""

import json
from pathlib import Path

from eyas.base.bundled import DEMO
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.train.loop.prepared import read_data
from eyas.train.settings.reading import read_settings

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train"
HELD_OUT = ROOT / "tests" / "assets" / "demo_heldout.jsonl"


def questions(path):
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {m["content"].strip().lower() for row in rows for m in row.get("messages", ()) if m["role"] == "user"}


def test_no_question_is_held_out():
    ours, held_out = questions(EXAMPLE / "demo_chats.jsonl"), questions(HELD_OUT)
    assert len(ours) > 1000 and len(held_out) > 300
    assert ours.isdisjoint(held_out)


def test_the_chats_are_small():
    assert (EXAMPLE / "demo_chats.jsonl").stat().st_size <= 1 << 20


def test_the_settings_read_them(monkeypatch):
    monkeypatch.chdir(ROOT)
    settings = read_settings(EXAMPLE / "demo.yaml")
    corpus, own = read_data(settings.data, Tokenizer.load(DEMO))
    assert own is None and corpus.tally.num_skipped == 0 and corpus.tally.num_without_turns == 0
    assert 0.02 < len(corpus.held_out) / len(corpus.training) < 0.1
    taught = sum(int((document.runs_T >= 0).sum()) for document in corpus.training)
    assert taught > 40_000
