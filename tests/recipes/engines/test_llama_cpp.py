"""The commands of llama-server and of the GGUF writer, to the word, and the options that each version has."""

import pytest
from msgspec.structs import replace

from eyas.base.errors import UserError
from eyas.recipes.advice.facts import facts_of
from eyas.recipes.advice.issues import matching
from eyas.recipes.engines import flags
from eyas.recipes.engines.llama_cpp import ENGINE, emit
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Choice, Download, EnvVar, Home, Node, Ref

SPARK, H100 = parse_box("spark"), parse_box("h100")
GGUF = "ggml-org/gpt-oss-120b-GGUF"
HEAD_FILE = Home(path=".local/share/eyas/plan/gguf/head.gguf")


def choice(**changes):
    return Choice(
        **{
            "model": "gpt-oss-120b", "engine": "llama.cpp", "version": "0.5.0", "image": None, "method": "none",
            "context": 65536, "concurrency": 1, "nodes": (Node(name="here"),), "port": 8005,
            "cache": Home(path=".cache/huggingface"), "directory": Home(path=".local/share/eyas/plan"), "name": "plan",
        }
        | changes
    )  # fmt: skip


def made(box=SPARK, model="gpt-oss-120b", head=None, **changes):
    known = knowledge()
    if head is not None:
        changes = {"method": "eagle3", "head": head, "draft_tokens": 1} | changes
        head = known.head(head)
    return emit(choice(model=model, **changes), box, known.model(model), head)


def value(argv, option):
    return argv[argv.index(option) + 1]


def test_the_published_command_for_a_spark():
    """The side file of the model's own repository is found by the server; the weights are read, not mapped.

    Its copies of conversations, which would share the memory, have the limits that the memory map counts.
    """
    emission = made(head="ggml-120b")
    (server,) = emission.launches
    assert server.argv == (
        "llama-server", "-hf", GGUF, "--alias", "openai/gpt-oss-120b", "-c", "65536", "-np", "1", "-b", "2048",
        "-ub", "2048", "-ngl", "999", "-fa", "on", "--jinja", "--load-mode", "none", "--cache-ram", "3829",
        "--ctx-checkpoints", "8", "--spec-type", "draft-eagle3", "--spec-draft-n-max", "1", "-ngld", "999", "--metrics",
        "--host", "127.0.0.1", "--port", "8005", "--offline",
    )  # fmt: skip
    assert server.env == (EnvVar(name="HF_HOME", value=Home(path=".cache/huggingface")),)
    (download,) = emission.downloads
    assert download.repo == GGUF and not download.exclude and download.num_bytes > 64e9
    assert (emission.readiness.path, emission.readiness.model) == ("/health", "openai/gpt-oss-120b")
    facts = facts_of(choice(method="eagle3", head="ggml-120b", draft_tokens=1), SPARK, emission)
    assert "flag:--load-mode=none" in facts.features
    assert "LCPP-MMAP" not in {issue.name for issue in matching(facts)}


def test_without_a_head_its_file_is_not_downloaded():
    emission = made(H100)
    (server,) = emission.launches
    assert not {"--spec-type", "-md", "--load-mode", "--cache-ram"} & set(server.argv)
    assert emission.downloads == (Download(repo=GGUF, num_bytes=63_400_000_000, exclude=("*eagle3-*",)),)


def test_context_is_given_for_all_slots_together():
    argv = made(concurrency=4, context=16384).launches[-1].argv
    assert (value(argv, "-c"), value(argv, "-np")) == ("65536", "4")


def test_a_head_without_a_file_is_written_as_one_first():
    """Only the JSON files of its target are needed for that."""
    export, server = made(head="nvidia-v3").launches
    folder = Home(path=".local/share/eyas/plan/gguf")
    assert export.is_once and export.argv == (
        "eyas", "export", "gguf", "openai/gpt-oss-120b", "--head-only", "--draft", "nvidia/gpt-oss-120b-Eagle3-v3",
        "--out", folder,
    )  # fmt: skip
    assert value(server.argv, "-hf") == GGUF and value(server.argv, "-md") == HEAD_FILE and not server.is_once
    assert [d.repo for d in made(head="nvidia-v3").downloads] == [GGUF, "nvidia/gpt-oss-120b-Eagle3-v3"]


def test_the_demo_model_is_written_first():
    emission = made(model="demo", head="demo-head", directory="/srv/it's", draft_tokens=3, context=4096)
    export, server = emission.launches
    assert export.argv == ("eyas", "export", "gguf", "demo", "--draft", "auto", "--out", "/srv/it's/gguf")
    assert value(server.argv, "-m") == "/srv/it's/gguf/model.gguf"
    assert value(server.argv, "-md") == "/srv/it's/gguf/head.gguf" and value(server.argv, "--alias") == "demo"
    assert not emission.downloads and not server.env and "--offline" not in server.argv
    plain, _ = made(model="demo").launches
    assert plain.argv[3:] == ("demo", "--draft", "none", "--out", Home(path=".local/share/eyas/plan/gguf"))


def test_folders_and_files_at_hand():
    export, server = made(model_path="/models/oss", head="lmsys-120b", head_path="/models/head").launches
    assert export.argv[3:6] == ("/models/oss", "--draft", "/models/head") and value(server.argv, "-md") == HEAD_FILE
    (server,) = made(model_path="/m.gguf", head="lmsys-120b", head_path="/h.gguf").launches
    assert server.argv[1:5] == ("-m", "/m.gguf", "-md", "/h.gguf")


def test_keys_are_referenced_and_memory_is_halved():
    (server,) = made(api_key_env="MY_KEY", listen="0.0.0.0", kv_dtype="fp8", binary="/opt/llama-server").launches
    assert EnvVar(name="LLAMA_API_KEY", value=Ref(name="MY_KEY")) in server.env
    assert server.argv[0] == "/opt/llama-server" and value(server.argv, "--host") == "0.0.0.0"
    assert (value(server.argv, "-ctk"), value(server.argv, "-ctv")) == ("q8_0", "q8_0")


@pytest.mark.parametrize("version", ["b10158", "b10488", "0.5.0", "0.6.1"])
def test_all_options_exist_in_every_version_of_the_range(version):
    made(head="ggml-120b", version=version, kv_dtype="fp8")
    removed = "--no-mmap"  # since b10884
    assert (removed in flags.options(ENGINE, version)) == version.startswith("b")


def test_what_it_cannot_do():
    with pytest.raises(UserError, match="not as a container"):
        made(image="ghcr.io/ggml-org/llama.cpp:server-cuda")
    with pytest.raises(UserError, match=r"no GGUF files of qwen3-32b are known"):
        made(model="qwen3-32b")
    with pytest.raises(UserError, match="not with draft models"):
        made(method="draft-model")
    with pytest.raises(ValueError, match=r"no table of the options of llama.cpp b9000"):
        made(version="b9000")


def test_a_choice_is_not_changed_by_the_name_of_its_folder():
    hostile = "/a b/$(touch x)'\""
    emission = made(model="demo", head="demo-head", directory=hostile)
    assert emission.launches[1].argv[2] == f"{hostile}/gguf/model.gguf"
    other = replace(choice(model="demo"), directory=Ref(name="SOMEWHERE"))
    with pytest.raises(ValueError, match="SOMEWHERE"):
        emit(other, SPARK, knowledge().model("demo"), None)
