"""The guides' commands as data against the commands as typed; and the differences of real emissions from them."""

from __future__ import annotations

from importlib import import_module
from itertools import product

import pytest
from msgspec.structs import replace
from tests.recipes.support.guide_commands import COMMANDS, RELEASE, SPARK_GUIDE, choice, typed

from eyas.recipes.advice.guides import Elements, deviations, elements_of, guides
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import DATA, knowledge, read
from eyas.recipes.plan import Choice, Home, Node

GUIDES = {guide.name: guide for guide in guides()}
ELEMENTS = read(DATA / "elements.yaml", Elements)
GENERIC = ("keeps its own default", "this plan's value for your box")
MOST_ADDED = 9


def made(engine, box, head=None, **changes):
    """A plan of eyas's own, through the real emitter."""
    known, place = knowledge(), parse_box(box)
    record = known.heads[head] if head is not None else None
    image = next((image for image in known.engines[engine].images if place.architecture in image.architectures), None)
    fields = {
        "model": record.target if record is not None else "gpt-oss-120b",
        "engine": engine,
        "version": known.engines[engine].version,
        "image": image.tag if image is not None else None,
        "method": record.kind if record is not None else "none",
        "head": head,
        "draft_tokens": 1 if record is not None else 0,
        "context": 40960,
        "concurrency": 4,
        "memory_fraction": 0.8,
        "tensor_parallel": place.num_gpus,
        "nodes": tuple(Node(name=f"node-{rank}", address=f"192.168.200.{12 + rank}") for rank in range(place.nodes)),
        "port": knowledge().engines[engine].port,
        "cache": Home(path=".cache/huggingface"),
        "directory": Home(path=".local/share/eyas/x"),
        "name": "x",
    }
    chosen = Choice(**(fields | changes))
    emitter = import_module(f"eyas.recipes.engines.{engine.replace('-', '_').replace('.', '_')}")
    return chosen, place, emitter.emit(chosen, place, known.models[chosen.model], record)


TRT = "1.3.0rc13"
PLANS = {
    "spark-guide-sglang": made("sglang", "spark", "lmsys-120b"),
    "corti-sglang": made("sglang", "spark", "lmsys-120b"),
    "corti-llama-cpp": made("llama.cpp", "spark"),
    "corti-ollama": made("ollama", "spark"),
    "playbook-eagle3": made("tensorrt-llm", "spark", "nvidia-long-context", version=TRT, image=f"{RELEASE}:{TRT}"),
    "playbook-draft-target": made("tensorrt-llm", "spark", "llama-3.1-8b-fp4", version=TRT, image=f"{RELEASE}:{TRT}"),
    "playbook-two-sparks": made("tensorrt-llm", "2xspark", "qwen3-235b-eagle3", version=TRT, image=f"{RELEASE}:{TRT}"),
    "blog-11": made("tensorrt-llm", "8xb200", "nvidia-v3", expert_parallel=4, version=TRT, image=f"{RELEASE}:{TRT}"),
    "aimo3-vllm": made("vllm", "8xh800", "aimo3", draft_tokens=3),
}


def of(name, plan):
    """The deviations from one guide's command: guides of one site have one title, so it is told by its engine too."""
    return [one for one in deviations(*plan) if one.guide == GUIDES[name].title]


def test_every_guide_is_compared_here():
    assert set(GUIDES) == set(COMMANDS) == set(PLANS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_data_about_a_guide_is_its_command(name):
    emission, chosen, _ = COMMANDS[name]
    assert elements_of(chosen, emission).keys() == GUIDES[name].elements.keys()
    for key, value in elements_of(chosen, emission).items():
        assert value.rstrip("/") == GUIDES[name].elements[key].rstrip("/")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_guide_does_not_differ_from_its_own_command(name):
    emission, chosen, box = COMMANDS[name]
    steps = {step.theirs for step in GUIDES[name].steps}
    assert all(one.theirs in steps for one in of(name, (chosen, box, emission)))


@pytest.mark.parametrize("name", PLANS)
def test_every_difference_is_told_with_a_written_reason(name):
    found = of(name, PLANS[name])
    assert found
    unwritten = [one for one in found if any(generic in one.why for generic in GENERIC)]
    assert unwritten == []
    assert all(one.why and (one.theirs or one.ours) and one.theirs != one.ours for one in found)


@pytest.mark.parametrize("name", PLANS)
def test_nothing_of_the_guide_is_passed_over(name):
    """What is in its command and not, or not alike, in the plan's, is in a deviation."""
    chosen, _, emission = PLANS[name]
    ours, theirs = elements_of(chosen, emission), GUIDES[name].elements
    found = of(name, PLANS[name])
    for key in theirs:
        if ours.get(key, "-").rstrip("/") != theirs[key].rstrip("/"):
            word = key.partition(":")[2] or theirs[key]
            assert any(word.split(" ")[-1] in one.theirs for one in found), key


@pytest.mark.parametrize("name", PLANS)
def test_of_what_is_added_only_what_matters_is_told(name):
    chosen, _, emission = PLANS[name]
    ours = elements_of(chosen, emission)
    added = [one for one in of(name, PLANS[name]) if not one.theirs]
    worth = {ours.get(key) for engine in ELEMENTS.values() for key in engine.added}
    assert 0 < len(added) <= MOST_ADDED
    for one in added:
        assert ours.get(f"flag:{one.ours}") == "" or any(value and one.ours.endswith(value) for value in worth)


def test_every_written_reason_is_of_something_that_a_guide_has_or_that_is_told_when_added():
    for engine, elements in ELEMENTS.items():
        told = {*elements.added}
        for guide in GUIDES.values():
            if engine in ("all", guide.engine):
                told |= {*guide.elements, *guide.instead.values()}
                told |= {key.partition(":")[0] + ":*" for key in guide.elements}
        assert elements.why.keys() - told == set()
        assert set(elements.added) <= elements.why.keys()


EXPECTED = [
    ("spark-guide-sglang", "--max-model-len 8192", "--context-length 40960", "no --max-model-len in any version"),
    ("spark-guide-sglang", "--quantization mxfp4", "", "draft head"),
    ("spark-guide-sglang", "--host 0.0.0.0", "--host 127.0.0.1", "without a key"),
    ("spark-guide-sglang", "--speculative-num-steps 3", "--speculative-num-steps 1", "bytes"),
    ("spark-guide-sglang", "lmsysorg/sglang:spark", "lmsysorg/sglang:v0.5.21-cu130", "2025-10"),
    ("spark-guide-sglang", "-p 30000:30000", "--network host", "every address"),
    ("spark-guide-sglang", "HF_TOKEN=$HF_TOKEN", "", "docker inspect"),
    ("corti-llama-cpp", "--no-mmap", "--load-mode none", "mapped"),
    ("corti-llama-cpp", "-c 16384 \\          # context length", None, "backslash"),
    ("corti-ollama", "a context of 4096 tokens unless raised in a Modelfile", "OLLAMA_CONTEXT_LENGTH", "24 GiB"),
    ("playbook-eagle3", f"{RELEASE}:1.2.0rc6", f"{RELEASE}:{TRT}", f"a newer image ({TRT} instead of 1.2.0rc6)"),
    ("playbook-eagle3", "speculative_config.max_draft_len: 5", "speculative_config.max_draft_len: 1", "bytes"),
    ("playbook-eagle3", "cat > /tmp/extra-llm-api-config.yml <<EOF, inside bash -c '...'", None, "EOF"),
    ("playbook-draft-target", "print_iter_log: false", "", "default"),
    (
        "playbook-draft-target",
        "speculative_config.decoding_type: DraftTarget",
        "speculative_config.decoding_type: Draft_Target",
        "TRTLLM-DRAFTTARGET",
    ),
    ("playbook-two-sparks", "--max_num_tokens 1024", "--max_num_tokens 8192", "longest prompt"),
    ("playbook-two-sparks", "-x HF_TOKEN", "", "no token"),
    ("blog-11", "--trust_remote_code", "", "Python code from the model's repository"),
    ("blog-11", "trust_remote_code: true", "", "Python code from the model's repository"),
    ("blog-11", f"{RELEASE}:1.1.0rc0", f"{RELEASE}:{TRT}", "greedy"),
    ("aimo3-vllm", "--async-scheduling", "", "by itself"),
    ("aimo3-vllm", "--kv-cache-dtype fp8", "", "changes answers"),
    ("aimo3-vllm", "--host 0.0.0.0", "--host 127.0.0.1", "without a key"),
    ("aimo3-vllm", "-m vllm.entrypoints.openai.api_server", "", "vllm serve"),
    ("blog-11", "--max_seq_len 131072", "--max_seq_len 40960", "your --context"),
]


@pytest.mark.parametrize(("name", "theirs", "ours", "word"), EXPECTED)
def test_the_traps_of_the_guides_are_named(name, theirs, ours, word):
    one = next(one for one in of(name, PLANS[name]) if one.theirs == theirs)
    assert ours is None or one.ours == ours
    assert word in one.why


def test_a_script_piped_from_a_moving_branch_is_named():
    piped = [one for one in of("playbook-two-sparks", PLANS["playbook-two-sparks"]) if "| bash" in one.theirs]
    assert len(piped) == 1 and "root" in piped[0].why


@pytest.mark.parametrize("name", PLANS)
def test_what_a_guide_does_beside_its_command_is_named_where_the_plan_does_not(name):
    told = {one.theirs for one in of(name, PLANS[name])}
    assert {step.theirs for step in GUIDES[name].steps} <= told


def test_a_plan_that_drafts_nothing_says_so_instead_of_explaining_each_flag():
    found = {one.theirs: one for one in deviations(*made("sglang", "spark")) if one.theirs}
    for flag in ("--speculative-algorithm EAGLE3", "--speculative-num-steps 3", "--speculative-eagle-topk 1"):
        assert found[flag].ours == "" and "drafts nothing" in found[flag].why


def test_what_has_no_written_reason_gets_one_from_the_difference():
    chosen, box = choice("sglang", "spark", version="0.5.23")
    launch = SPARK_GUIDE.launches[0]
    container = replace(launch.container, image="lmsysorg/sglang:latest", options=("--gpus", "all"))
    emission = replace(SPARK_GUIDE, launches=(replace(launch, container=container),))
    found = {one.theirs: one for one in of("spark-guide-sglang", (chosen, box, emission))}
    assert {"--shm-size 32g", "-p 30000:30000", "--ipc host"} <= found.keys()


@pytest.mark.parametrize(
    ("ours", "why"),
    [
        (f"{RELEASE}:1.3.0rc13", "a newer image (1.3.0rc13 instead of 1.2.0rc6)"),
        (f"{RELEASE}:1.1.0rc0", "an older image (1.1.0rc0 instead of 1.2.0rc6)"),
        (f"{RELEASE}:nightly", "another tag of the same image: the one known for this version, box and processor"),
        ("registry.example/trt:1.3.0", "another image: the one known for this version, box and processor"),
    ],
)
def test_an_image_is_newer_older_or_another(ours, why):
    emission, chosen, box = COMMANDS["playbook-eagle3"]
    server = emission.launches[0]
    changed = replace(emission, launches=(replace(server, container=replace(server.container, image=ours)),))
    assert next(one for one in deviations(chosen, box, changed) if one.ours == ours).why == why


@pytest.mark.parametrize(
    "plan",
    [made("vllm", "spark", "nvidia-v3"), made("sglang", "h100", "lmsys-120b"), made("sglang", "2xspark", "lmsys-120b")],
    ids=["another engine", "another box", "two machines"],
)
def test_a_plan_that_no_guide_is_about_has_no_deviations(plan):
    assert deviations(*plan) == ()


@pytest.mark.parametrize(("fp8", "key", "head"), list(product((False, True), (None, "KEY"), (None, "lmsys-120b"))))
def test_other_choices_have_a_reason_for_each_difference_too(fp8, key, head):
    plan = made("sglang", "spark", head, kv_dtype="fp8" if fp8 else "auto", api_key_env=key, listen="0.0.0.0")
    found = deviations(*plan)
    assert all(one.why for one in found)
    assert not any("--host" in one.ours for one in found)  # as the guides have it, and with a key
    assert not any("KEY" in one.ours and "$KEY" not in one.ours for one in found)


def test_values_are_compared_as_numbers_where_they_are():
    chosen, box = choice("sglang", "spark")
    emission = typed("python3 -m sglang.launch_server --model-path openai/gpt-oss-120b --host 0.0.0.0 --port 30000.0")
    assert not any("--port" in one.theirs + one.ours for one in of("corti-sglang", (chosen, box, emission)))
