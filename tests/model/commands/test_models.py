"""`eyas models make` and `eyas models info` as a person types them."""

import json
import subprocess
import sys
from math import prod

import pytest

from eyas.cli import main
from eyas.model.checkpoints.config_json import target_json
from eyas.model.checkpoints.names import all_parts
from eyas.model.checkpoints.shards import DTYPE_BYTES, StoredTensor
from eyas.model.commands.describe import describe
from eyas.model.making.presets import PRESETS


def test_make_then_info(tmp_path, capsys):
    out = tmp_path / "model"
    assert main(["models", "make", "tiny", "num_layers=6", "--out", str(out), "--shard-size", "300K", "--json"]) == 0
    made = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert made == {"model": str(out), "head": str(out / "eagle3"), "seed": 0}
    assert len(list(out.glob("model-*-of-*.safetensors"))) > 1

    assert main(["models", "info", str(out), "--json"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    description = json.loads(last)
    stored = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    assert 0.95 * stored < description["bytes"] < stored and description["layers"] == 6
    assert sum(part["bytes"] for part in description["parts"].values()) == description["bytes"]
    assert any(line.startswith("experts") for line in table) and "HS[2], HS[3], HS[3]" in "\n".join(table)


@pytest.mark.parametrize(
    ("name", "size", "billions", "read_gb"),
    [("gpt-oss-20b", 13_761_264_768, (20.9, 3.6), 3.736), ("gpt-oss-120b", 65_248_815_744, (116.8, 5.1), 5.045)],
)
def test_info_of_the_published_shapes(tmp_path, name, size, billions, read_gb):
    """Sizes that OpenAI states, and the bytes that a token reads with 1,024 tokens in the cache, counted by hand."""
    config = PRESETS[name]
    (tmp_path / "config.json").write_text(json.dumps(target_json(config)))
    stored = {
        part.name: StoredTensor(
            file="x", dtype=part.dtype, shape=part.shape, num_bytes=DTYPE_BYTES[part.dtype] * prod(part.shape)
        )
        for _, _, _, parts in all_parts(config, "hf")
        for part in parts
    }
    description = describe(tmp_path, stored)
    counts = (description["parameters"], description["active_parameters"])
    assert description["bytes"] == size and tuple(round(count / 1e9, 1) for count in counts) == billions
    cache = 1024 * description["kv_bytes_per_token"] + description["kv_bytes_of_windows"]
    assert (description["bytes_read_per_token"] + cache) / 1e9 == pytest.approx(read_gb, abs=0.005)
    assert description["kv_bytes_per_token"] == config.num_layers * 1024


def test_info_of_a_head(tmp_path, capsys):
    out = tmp_path / "model"
    assert main(["models", "make", "tiny", "--out", str(out), "--draft", "norm-before-fc"]) == 0
    capsys.readouterr()
    assert main(["models", "info", str(out / "eagle3")]) == 0
    alone = capsys.readouterr().out
    assert "EAGLE-3 head" in alone and "HS[5], HS[6], HS[8]" in alone and "HS[6], HS[7], HS[9]" in alone
    assert main(["models", "info", str(out / "eagle3"), "--target", str(out)]) == 0
    checked = capsys.readouterr().out
    assert "taps          HS[5], HS[6], HS[8]" in checked and "norm_before_fc" in checked


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["info", "/nowhere/at/all"], "neither a folder nor a hub id"),
        (["info", "."], "has no config.json"),
        (["make", "tinny", "--out", "x"], "did you mean 'tiny'"),
        (["make", "tiny", "--out", "x", "--draft", "medusa"], "no head 'medusa'"),
        (["make", "tiny", "--out", "x", "--shard-size", "5 parsecs"], "give a size such as 500M or 5G"),
        (["make", "tiny", "--out", "x", "--seed", "-1"], "give 0 or more"),
    ],
)
def test_errors_are_one_line_and_leave_nothing(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert main(["models", *words]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_kept(tmp_path, capsys):
    (tmp_path / "kept").write_text("mine")
    assert main(["models", "make", "tiny", "--out", str(tmp_path)]) == 1
    assert "exists; choose another --out or delete it" in capsys.readouterr().err
    assert (tmp_path / "kept").read_text() == "mine"


def test_help_needs_no_torch():
    code = "import sys; from eyas.cli import main; main(['models', 'make', '--help'])"
    check = f"import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); {code}"
    out = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert "--shard-size" in out.stdout and out.stdout.splitlines()[-1] == "False"
