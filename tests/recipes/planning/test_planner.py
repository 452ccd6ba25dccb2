"""The planner: what changes a choice, what it refuses, and the one line it says then."""

import json
import subprocess
import sys

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.base.errors import UserError
from eyas.cli import main
from eyas.recipes.advice import issues
from eyas.recipes.advice.facts import facts_of
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Plan
from eyas.recipes.planning.ask import CLAUDE_CODE_CONTEXT
from eyas.recipes.planning.planner import Ask, make_plan

BOXES = ("spark", "2xspark", "rtx-pro-6000", "h100", "h200", "8xh200", "b200", "8xb200")


def ask(model: str = "gpt-oss-120b", **fields) -> Ask:
    return Ask(model=model, **{"on": "spark"} | fields)


def texts(notes) -> str:
    return "\n".join(note.text for note in notes)


def test_three_draft_tokens_lose_on_a_spark_at_batch_1():
    plan = make_plan(ask(engine="sglang", spec="eagle3", concurrency=1, context=8192, head="lmsys"))
    assert plan.choice.draft_tokens < 3
    assert "3 draft tokens a round loses" in texts(plan.reasons)
    free = make_plan(ask(concurrency=1))
    assert free.choice.method == "none" and "3 draft tokens a round loses" in texts(free.reasons)
    forced = make_plan(ask(engine="sglang", concurrency=1, context=8192, head="lmsys", draft_tokens=3))
    assert forced.speed.break_even_length > forced.speed.acceptance.high
    assert "speculation is expected to cost time" in texts(forced.warnings)


def test_tools_change_the_engine_or_the_speculation():
    """TensorRT-LLM with EAGLE-3 loses tool calls on a GB10."""
    asked = {"engine": "tensorrt-llm", "context": 32768, "concurrency": 1, "head": "nvidia-long-context"}
    with_tools = make_plan(ask(tools=True, **asked))
    assert "TRTLLM-16377" in {note.issue for note in with_tools.warnings}
    assert "TRTLLM-16377" not in {note.issue for note in make_plan(ask(**asked)).warnings}
    for engine in ("auto", "tensorrt-llm"):
        free = make_plan(ask(tools=True, context=32768, concurrency=1, engine=engine))
        assert free.choice.engine != "tensorrt-llm" or free.choice.method == "none"


def test_claude_code_gets_128k_or_a_warning():
    assert make_plan(ask(purpose="claude-code")).choice.context == CLAUDE_CODE_CONTEXT
    assert make_plan(ask(purpose="claude-code")).choice.tools
    assert "--context 128k" in texts(make_plan(ask(purpose="claude-code", context=65536)).warnings)


@pytest.mark.parametrize("engine", ["auto", "sglang", "vllm", "tensorrt-llm"])
@pytest.mark.parametrize("tools", [True, False])
def test_no_plan_falls_under_an_issue_that_forbids_it(engine, tools):
    for box in BOXES if engine != "tensorrt-llm" else ("spark", "2xspark", "rtx-pro-6000", "b200", "8xb200"):
        plan = make_plan(ask(on=box, tools=tools, engine=engine))
        facts = facts_of(plan.choice, plan.box, plan.emission, ("chat", *(("tools",) if tools else ())))
        assert not [issue.name for issue in issues.matching(facts) if issue.effect == "forbid"]


@settings(max_examples=25, deadline=None)
@given(
    on=st.sampled_from(BOXES),
    engine=st.sampled_from(("auto", "sglang", "vllm", "tensorrt-llm", "llama.cpp", "ollama", "eyas")),
    context=st.integers(1024, 131072),
    concurrency=st.integers(1, 64),
    model=st.sampled_from(("gpt-oss-120b", "gpt-oss-20b", "qwen3-235b-a22b-fp4", "llama-3.3-70b-fp4")),
    tools=st.booleans(),
)
def test_a_plan_fits_and_survives_its_file_or_is_refused_in_one_line(on, engine, context, concurrency, model, tools):
    asked = ask(model, on=on, engine=engine, context=context, concurrency=concurrency, tools=tools)
    try:
        plan = make_plan(asked)
    except UserError as error:
        assert "\n" not in str(error) and str(error).startswith(
            (f"no plan for {model} on {on}: ", f"{model} has a context of", f"{model} is too large")
        )
        return
    assert plan.memory.fits or (plan.memory.max_tokens >= context and "of full length fit" in texts(plan.warnings))
    assert plan.choice.draft_tokens == 0 or plan.choice.head
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    assert msgspec.convert(yaml.safe_load(yaml.safe_dump(json.loads(msgspec.json.encode(plan)))), Plan) == plan
    assert plan.evidence and plan.reasons


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "gpt-oss-121b"}, "did you mean 'gpt-oss-120b'?"),
        ({"on": "h1000"}, "did you mean"),
        ({"on": "3xspark"}, "3"),
        ({"on": "rtx-5090"}, "gpt-oss-120b is too large for rtx-5090"),
        ({"engine": "llama.cpp", "context": 131072, "concurrency": 64}, "what fits: --context"),
        ({"context": 200_000}, "has a context of 131072"),
        ({"engine": "tensorrt-llm", "on": "h100"}, "not planned on compute capability 9.0"),
        ({"engine": "ollama", "spec": "eagle3"}, "no plan for gpt-oss-120b on spark"),
        ({"engine": "sglang", "version": "0.4.0"}, "0.4.0"),
        ({"head": "lmsys/EAGLE3-gpt-oss-20b-bf16"}, "is a head of gpt-oss-20b"),
        ({"listen": "0.0.0.0"}, "--api-key env:"),
        ({"nodes": ("me@there", "me@elsewhere")}, "1 node"),
        ({"nodes": ("-oProxyCommand=x",)}, "USER@HOST"),
        ({"on": "2xspark", "nodes": ("me@a", "me@a")}, "twice"),
        ({"on": "2xspark", "nodes": ("me@a=10.0.0.1;x", "me@b")}, "address and interfaces"),
        ({"context": 0}, "--context wants at least 1"),
        ({"concurrency": 0}, "--concurrency wants 1 to"),
        ({"on": "h200", "engine": "eyas", "concurrency": 513}, "at most 512 requests at once"),
        ({"draft_tokens": 0}, "--spec none"),
        ({"draft_tokens": 1000}, "--draft-tokens wants 1 to 16"),
        ({"port": 70000}, "--port wants 1 to 65535"),
        ({"listen": "foo bar", "api_key_env": "KEY"}, "--host wants an address"),
        ({"api_key_env": "sk-123"}, "not the key itself"),
        ({"name": "../../up"}, "--name wants"),
        ({"cache": "relative"}, "absolute path"),
        ({"native": True, "image": "x", "engine": "sglang"}, "exclude each other"),
        ({"version": "0.5.6"}, "--engine-version belongs to one engine"),
        ({"image": "foo"}, "--image belongs to one engine"),
        ({"engine": "sglang", "binary": "/usr/bin/sglang"}, "--native"),
        ({"head": "lmsys", "spec": "none"}, "--spec none excludes"),
        ({"head": "lmsys", "spec": "draft-model"}, "is for --spec eagle3"),
        ({"model": "llama-3.3-70b-fp4", "spec": "eagle3"}, "known: --spec draft-model"),
        ({"head": "throughput", "draft_tokens": 3, "engine": "vllm"}, "at most 1 draft tokens"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(fields, said):
    with pytest.raises(UserError) as raised:
        make_plan(ask(**fields))
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_folder_is_planned_by_its_shape_and_its_own_size(tmp_path):
    model = knowledge().model("gpt-oss-120b")
    config = {"num_hidden_layers": 36, "hidden_size": 2880, "vocab_size": 201088}
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": model.total_bytes + (1 << 30)}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    mine, theirs = (make_plan(ask(name, engine="sglang", on="h200")) for name in (str(tmp_path), "gpt-oss-120b"))
    assert mine.choice.model_path == str(tmp_path)
    assert mine.memory.needed - theirs.memory.needed == 1 << 30
    with pytest.raises(UserError, match="is no known model by its shape"):
        (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 2881}))
        make_plan(ask(str(tmp_path)))


@pytest.mark.parametrize(
    ("file", "content"),
    [("config.json", content) for content in ("{}", "[1]", "null", '"x"', "{", '{"num_hidden_layers": "36"}', None)]
    + [
        ("model.safetensors.index.json", content)
        for content in ("[]", '{"metadata": null}', '{"metadata": {"total_size": "x"}}')
    ],
)
def test_a_damaged_folder_is_one_line(tmp_path, file, content):
    config = {"num_hidden_layers": 36, "hidden_size": 2880, "vocab_size": 201088}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if content is None:
        (tmp_path / file).unlink()
        (tmp_path / file).mkdir()
    else:
        (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=file) as raised:
        make_plan(ask(str(tmp_path)))
    assert "\n" not in str(raised.value)


def test_a_head_of_ones_own_is_planned_from_its_folder(tmp_path):
    config = {
        "hidden_size": 2880,
        "vocab_size": 201088,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "draft_vocab_size": 32000,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(1_774_007_168)
    plan = make_plan(ask(engine="sglang", on="h200", head=str(tmp_path)))
    assert plan.choice.head_path == str(tmp_path) and plan.choice.method == "eagle3"
    (server,) = [launch for launch in plan.emission.launches if not launch.is_once]
    (mount,) = [mount for mount in server.container.mounts if mount.source == str(tmp_path)]
    assert mount.target in server.argv
    with pytest.raises(UserError, match=tmp_path.name):
        make_plan(ask(engine="ollama", on="h200", head=str(tmp_path)))
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 4096}))
    with pytest.raises(UserError, match="is no head of gpt-oss-120b"):
        make_plan(ask(engine="sglang", on="h200", head=str(tmp_path)))


def test_the_command_prints_a_screen_and_writes_files(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["plan", "gpt-oss-120b", "--on", "spark", "--engine", "sglang"]
    assert main([*words, "--explain"]) == 0
    screen = capsys.readouterr().out
    for title in ("Memory of one GPU", "Expected speed", "Why", "Why not", "Evidence", "Unlike the guides"):
        assert title in screen
    assert "--max-model-len" in screen  # the guide's flag, explained
    assert max(map(len, screen.splitlines())) <= 130
    for form in ("plan", "shell", "compose", "systemd", "sbatch"):
        assert main([*words, "--emit", form, "--out", form]) == 0
        written = capsys.readouterr().out.split()
        assert written and all((tmp_path / path).stat().st_size for path in written)
    (saved,) = (tmp_path / "plan").iterdir()
    assert msgspec.convert(yaml.safe_load(saved.read_text()), Plan).choice.engine == "sglang"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["choice"]["engine"] == "sglang"


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "taken").write_text("")
    command = [sys.executable, "-m", "eyas", "plan", "gpt-oss-120b", "--on", "spark", "--emit", "shell"]
    done = subprocess.run([*command, "--out", str(tmp_path / "taken")], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "cannot write to" in done.stderr
