"""Plans for what stands beside a text model: pictures and embeddings, on llama-server and on Ollama."""

import pytest

from eyas.base.errors import UserError
from eyas.recipes.estimate.footprint import footprint
from eyas.recipes.estimate.kv import UNLIMITED
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.planning.planner import Ask, make_plan
from eyas.recipes.planning.show import show

SIDECARS = [model for model in knowledge().models.values() if model.roles[0] != "text"]
ENGINES = ("llama.cpp", "ollama")


def planned(model, on="spark", **asked):
    return make_plan(Ask(model=model, on=on, **asked))


def server(plan):
    return next(launch for launch in plan.emission.launches if launch.name == "server")


def option(plan, name):
    argv = server(plan).argv
    return argv[argv.index(name) + 1] if name in argv else None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", SIDECARS, ids=lambda model: model.name)
@pytest.mark.parametrize("on", ["spark", "h100", "rtx-5090", "cpu"])
def test_every_sidecar_has_a_plan_on_both_engines(model, engine, on):
    plan = planned(model.name, on, engine=engine)
    assert plan.choice.role == model.roles[0]
    assert plan.choice.head is None and plan.memory.fits
    assert plan.memory.needed < 7 << 30
    assert f"for {'pictures' if plan.choice.role == 'vision' else 'embeddings'}" in show(plan)
    assert ("tok/s" in show(plan)) == (plan.choice.role == "vision")


def test_the_command_for_embeddings():
    """A text is read in one step: llama-server refuses what is longer than -ub (tools/server/server.cpp)."""
    plan = planned("nomic-embed-text", engine="llama.cpp")
    assert server(plan).argv == (
        "llama-server", "-hf", "nomic-ai/nomic-embed-text-v1.5-GGUF", "-hff", "nomic-embed-text-v1.5.f16.gguf",
        "--alias", "nomic-ai/nomic-embed-text-v1.5", "-c", "8192", "-np", "4", "-b", "2048", "-ub", "2048",
        "-ngl", "999", "-fa", "auto", "--embeddings", "--pooling", "mean", "--load-mode", "none", "--cache-ram", "0",
        "--ctx-checkpoints", "0", "--metrics", "--host", "127.0.0.1", "--port", "8007", "--offline",
    )  # fmt: skip
    assert option(planned("qwen3-embedding", engine="llama.cpp", context=8192), "-ub") == "8192"
    assert option(planned("qwen3-embedding", engine="llama.cpp"), "--pooling") == "last"
    (download,) = plan.emission.downloads
    assert (download.include, download.num_bytes) == (("nomic-embed-text-v1.5.f16.gguf",), 274_290_560)


def test_the_command_for_pictures():
    """llama-server finds the projector beside the file that it is named: no other is downloaded."""
    plan = planned("qwen2.5-vl-3b", engine="llama.cpp")
    (download,) = plan.emission.downloads
    assert option(plan, "-hff") == download.include[0] == "Qwen2.5-VL-3B-Instruct-Q4_K_M.gguf"
    assert download.include[1].startswith("mmproj-") and download.num_bytes == 1_929_901_056 + 844_757_728
    assert option(plan, "-ub") == "512" and "--mmproj-auto" in server(plan).argv and "--jinja" in server(plan).argv
    rows = {row.owner: row.num_bytes for row in plan.memory.rows}
    assert rows["vision encoder"] == 844_757_728 and rows["weights"] == 1_929_901_056


def test_a_model_with_eyes_can_be_served_without_them():
    plan = planned("gemma-3-4b", engine="llama.cpp", role="text")
    assert plan.choice.role == "text" and plan.choice.name == "gemma-3-4b-text-llama-cpp"
    assert "--no-mmproj" in server(plan).argv
    assert plan.emission.downloads[0].include == ("gemma-3-4b-it-Q4_K_M.gguf",)
    assert "vision encoder" not in {row.owner for row in plan.memory.rows}
    assert planned("gemma-3-4b", engine="ollama", role="text").choice.context == 32 << 10


def test_ollama_pulls_its_own_tag():
    for model in SIDECARS:
        plan = planned(model.name, engine="ollama")
        tag = model.repos["ollama"]
        assert plan.emission.launches[-1].argv == ("ollama", "pull", tag) and plan.emission.readiness.model == tag


def test_an_encoder_keeps_no_cache():
    plan = planned("nomic-embed-text")
    assert "KV cache" not in {row.owner for row in plan.memory.rows}
    assert plan.memory.max_tokens == UNLIMITED and "no KV cache is kept" in show(plan)
    assert "KV cache" in {row.owner for row in planned("qwen3-embedding").memory.rows}


@pytest.mark.parametrize("engine", ENGINES)
def test_three_plans_stand_on_one_box(engine):
    """The 120b, pictures and embeddings: names, folders and ports differ, and all stay below 80 % of a Spark."""
    box = parse_box("spark").hardware
    text = planned("gpt-oss-120b", engine="sglang", memory="76GiB", concurrency=2)
    plans = [text, planned("qwen2.5-vl-3b", engine=engine), planned("qwen3-embedding", engine=engine)]
    for what in ("name", "directory", "port"):
        assert len({getattr(plan.choice, what) for plan in plans}) == 3
    total = sum(footprint(plan).steady_bytes for plan in plans) + box.os_reserve_bytes
    assert text.memory.fits and total < 0.80 * box.usable_bytes


def test_the_demo_stands_in_for_a_model_of_embeddings():
    plan = planned("demo", "cpu", role="embeddings")
    assert plan.choice.engine == "llama.cpp" and plan.choice.name == "demo-embeddings-llama-cpp"
    assert [launch.name for launch in plan.emission.launches] == ["gguf", "server"]
    assert option(plan, "--pooling") == "mean" and "-md" not in server(plan).argv


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"model": "gpt-oss-120b", "role": "vision"}, "gpt-oss-120b is for text, not for --role vision (qwen2.5-vl-3b"),
        ({"model": "nomic-embed-text", "role": "text"}, "is for embeddings, not for --role text"),
        ({"model": "nomic-embed-text", "tools": True}, "--tools belongs to --role text"),
        ({"model": "gemma-3-4b", "purpose": "batch"}, "--for belongs to --role text"),
        ({"model": "demo", "role": "embeddings", "draft_tokens": 1}, "--draft or --spec belongs to --role text"),
        ({"model": "demo", "role": "embeddings", "engine": "eyas"}, "eyas: is not planned for embeddings"),
        ({"model": "gemma-3-4b", "engine": "vllm"}, "vLLM: does not run gemma-3-4b"),
        ({"model": "nomic-embed-text", "context": 8192}, "has a context of 2048 tokens"),
        ({"model": "qwen2.5-vl-3b", "memory": "2GiB"}, "takes at least"),
    ],
)
def test_what_cannot_be_is_said(asked, said):
    with pytest.raises(UserError) as raised:
        make_plan(Ask(**{"on": "spark"} | asked))
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_evidence_is_of_the_role():
    tests = {
        role: [row.detail for row in planned("demo", "cpu", engine="llama.cpp", spec="none", role=role).evidence]
        for role in ("text", "embeddings")
    }
    assert "test_llama_server.py" in tests["text"][0] and "test_sidecars.py" not in str(tests["text"])
    assert "test_sidecars.py" in tests["embeddings"][0] and "EAGLE-3" not in str(tests["embeddings"])
