"""The examples of pools: plans made as their comments say, and their sums at rest."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from eyas import cli
from eyas.base.units import readable
from eyas.router.settings.reader import examine
from eyas.router.settings.rest import at_rest

EXAMPLES = Path(__file__).parents[3] / "examples" / "router"


def made(name, tmp_path, monkeypatch, change=lambda words: words):
    """The example as it is examined, beside the plans that its comments make."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EYAS_HOME", str(tmp_path / "home"))
    file = tmp_path / name
    shutil.copy(EXAMPLES / name, file)
    commands = re.findall(r"^#   eyas (plan .*)$", file.read_text(), re.MULTILINE)
    assert commands
    for command in commands:
        assert cli.main(change(shlex.split(command))) == 0
    return file, examine(file, {})


@pytest.mark.parametrize("engine", ["sglang", "llama.cpp"])
def test_a_spark_with_both_sidecars_at_rest(tmp_path, monkeypatch, capsys, engine):
    """Beside the large model, below 80 %; and another large one is refused."""

    def change(words):
        if engine == "llama.cpp" and "gpt-oss-120b" in words:
            return ["plan", "gpt-oss-120b", "--on", "spark", "--engine", engine, *words[words.index("--name") :]] + [
                *("--concurrency", "1")
            ]
        return words

    file, found = made("spark.yaml", tmp_path, monkeypatch, change)
    assert found.problems == ()
    (rest,) = at_rest(found.settings, found.plans)
    assert [owner for owner, _ in rest.rows] == ["the system", "large", "eyes", "vectors"]
    assert rest.used < 0.8 * rest.total
    capsys.readouterr()
    assert cli.main(["router", str(file), "--check"]) == 0
    assert str(rest) in capsys.readouterr().out
    assert cli.main(["router", "plan", str(file)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("eyes ") and line.endswith("large, vectors fits") for line in lines), lines
    content = file.read_text().replace("models:", "  second: {plan: plans/second.yaml}\nmodels:\n  second: [second]", 1)
    file.write_text(content)
    cli.main(["plan", "gpt-oss-120b", "--on", "spark", "--engine", "llama.cpp", "--concurrency", "1", "--port", "8100",
              "--name", "second", "--emit", "plan", "--out", "plans"])  # fmt: skip
    (problem,) = (one for one in examine(file, {}, {"port": 8200}).problems if "second" in one)
    said = r"backends.second can never be loaded: it takes [\d.]+ GiB, and at most [\d.]+ GiB is left for it"
    assert re.fullmatch(said, problem)


def test_an_h100_with_two_models_in_turn(tmp_path, monkeypatch, capsys):
    file, found = made("h100.yaml", tmp_path, monkeypatch)
    assert found.problems == ()
    capsys.readouterr()
    assert cli.main(["router", "plan", str(file)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert sum(line.endswith("small unloads small") for line in lines) == 1
    assert sum(line.endswith("large unloads large") for line in lines) == 1
    assert readable(found.settings.backends[0].steady_bytes) in " ".join(lines)
