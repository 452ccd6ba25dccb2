"""`tools/demo/train.py` in miniature: a target, chats, and a head by head.yaml that the engine drafts with."""

import json
from pathlib import Path

import pytest
from head_run import HEAD_YAML
from shapes import TARGET

import train
from eyas import cli
from eyas.base.bundled import DEMO
from eyas.model.config import Eagle3Config, RopeConfig
from eyas.model.taps import default_taps
from eyas.train.heads.registry import find_making
from eyas.train.settings.reading import read_settings

HELD_OUT = Path(__file__).parents[1] / "assets" / "demo_heldout.jsonl"
BUNDLED = Eagle3Config(
    vocab_size=TARGET.vocab_size,
    draft_vocab_size=2048,
    hidden_size=256,
    target_hidden_size=256,
    intermediate_size=1024,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
    taps=default_taps(TARGET.num_layers),
    rope=RopeConfig(theta=10000.0),
    max_context=TARGET.max_context,
)


def test_the_settings_make_a_head_of_the_bundled_sizes():
    settings = read_settings(HEAD_YAML)
    making = find_making(settings.head.kind)
    assert making.fresh_config(settings.head, TARGET, context=settings.data.context) == BUNDLED


@pytest.mark.slow
def test_smoke_run(tmp_path, capsys):
    out, work = tmp_path / "demo", tmp_path / "work"
    figures = train.main(["--smoke", "--out", str(out), "--work", str(work), "--workers", "1"])
    assert json.loads((out / "metrics.json").read_text()) == figures
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == figures
    assert figures["reload_difference"] == 0 and figures["head_steps"] == 4
    assert set(figures["tools"]) == {"calls", "finals", "not called", "answers"}
    assert set(figures["acceptance"]["acceptance"]) == {"text", "target", "sampled"}
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert files == {
        *("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"),
        *("metrics.json", "eagle3/config.json", "eagle3/model.safetensors"),
    }
    rows = [json.loads(line) for line in (work / "chats.jsonl").read_text().splitlines()]
    assert len(rows) == figures["chats"] >= 8
    assert json.loads((out / "eagle3" / "config.json").read_text())["draft_vocab_size"] == 2048

    # The head is for the bundled target: the miniature has learnt nothing to answer with.
    argv = ["bench", "acceptance", str(DEMO), "--draft", str(out / "eagle3"), "--prompts", str(HELD_OUT)]
    assert cli.main([*argv, "--limit", "2", "--temperature", "0", "--context", "1k", "--max-tokens", "24"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["results"][0]["content"]["acceptance_length"] >= 1
