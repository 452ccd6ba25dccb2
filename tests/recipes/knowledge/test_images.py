"""References of images, and what tells the version of the engine inside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import UserError
from eyas.recipes.engines import flags, sglang, vllm
from eyas.recipes.knowledge.images import engine_of_image, inside, parse_image
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.planning.planner import Ask, make_plan
from eyas.recipes.versions import satisfies

KNOWN = knowledge()
DIGEST = "sha256:" + "0123456789abcdef" * 4
PARTS = st.from_regex(r"[a-z0-9]{1,6}([._-][a-z0-9]{1,4})?", fullmatch=True)
TAGS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,12}", fullmatch=True)
HOSTS = st.sampled_from(
    ["nvcr.io", "localhost", "localhost:5000", "Registry.example:443", "10.0.0.1:5000", "[::1]:5000"]
)


@given(
    host=st.none() | HOSTS,
    path=st.lists(PARTS, min_size=1, max_size=4),
    tag=st.none() | TAGS,
    digest=st.none() | st.just(DIGEST),
)
def test_references_are_taken_apart(host, path, tag, digest):
    path = "/".join(["library", *path])
    text = (f"{host}/" if host else "") + path + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")
    assert parse_image(text) == (host, path, tag, digest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "vllm:",
        ":v1",
        "vllm/",
        "/vllm",
        "VLLM",
        "a_.b.c/x",
        "a b",
        "vllm@sha256:12",
        "vllm:v1:v2",
        "a//b",
        "-x",
        "\n",
        "é",
    ],
)
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(UserError, match="--image wants the name"):
        parse_image(text)


@pytest.mark.parametrize(
    ("engine", "image", "version"),
    [
        ("vllm", "vllm/vllm-openai:v0.33.0", "0.33.0"),
        ("vllm", "vllm/vllm-openai:v0.11.0rc3-aarch64", "0.11.0rc3"),  # older than plans know, and known to be
        ("vllm", "ghcr.io/mirror/vllm/vllm-openai:v0.20.1-cu130", "0.20.1"),
        ("vllm", f"vllm/vllm-openai@{DIGEST}", None),
        ("vllm", "vllm/vllm-openai:nightly", None),
        ("vllm", "nvcr.io/nvidia/vllm:26.05.post1-py3", "0.20.1"),
        ("vllm", "nvcr.io/nvidia/vllm:27.01-py3", None),  # a month is no version
        ("vllm", "corp.example:5000/ai/vllm:0.20.1", "0.20.1"),
        ("vllm", "corp.example:5000/ai/server:7.3", None),  # a version of something else
        ("sglang", "lmsysorg/sglang:v0.5.10.post1-cu130", "0.5.10.post1"),
        ("sglang", "lmsysorg/sglang:dev-arm64", None),
        ("tensorrt-llm", "nvcr.io/nvidia/tensorrt-llm/release:1.1.0rc0", "1.1.0rc0"),
        ("eyas", "eyas:0.1.0", "0.1.0"),
    ],
)
def test_the_tag_tells_the_version_where_it_has_one(engine, image, version):
    assert inside(KNOWN.engines[engine], parse_image(image), {}).version == version


def test_labels_go_before_the_tag_unless_they_are_of_the_base_image():
    engine, image = KNOWN.engines["vllm"], parse_image("vllm/vllm-openai:nightly")
    label = "org.opencontainers.image.version"
    ubuntu = {label: "22.04", "org.opencontainers.image.ref.name": "ubuntu"}
    assert inside(engine, image, ubuntu).version is None
    assert (
        inside(engine, image, {label: "v0.31.0", "org.opencontainers.image.title": "vLLM server"}).version == "0.31.0"
    )
    assert inside(engine, parse_image("vllm/vllm-openai:v0.33.0"), {"VLLM_VERSION": "0.31.0"}).version == "0.31.0"
    assert inside(engine, image, {"VLLM_VERSION": "main"}).version is None
    trt = KNOWN.engines["tensorrt-llm"]
    assert inside(trt, parse_image("trt:mine"), {"TRT_LLM_VERSION": "1.3.0rc12"}).version == "1.3.0rc12"


def test_a_mirror_is_known_by_its_path():
    assert engine_of_image(parse_image("registry.example:5000/lmsysorg/sglang:spark")) == "sglang"
    assert engine_of_image(parse_image("mine/notlmsysorg/sglang:spark")) is None


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("box", ["spark", "h100", "8xb200"])
def test_a_plan_for_an_unknown_version_has_options_that_all_have(engine, box):
    plan = make_plan(Ask(model="gpt-oss-120b", on=box, engine=engine, image="corp/llm:mine", purpose="claude-code"))
    assert not plan.choice.is_version_known
    known = KNOWN.engines[engine]
    model = KNOWN.models["gpt-oss-120b"]
    head = KNOWN.heads[plan.choice.head] if plan.choice.head else None
    emitted = {"sglang": sglang, "vllm": vllm}[engine].emit(plan.choice, plan.box, model, head)
    server = emitted.launches[-1]
    for version in flags.known_versions(engine):
        if satisfies(version, known.versions) and not version.startswith("0.5.3"):
            flags.check(engine, version, server.argv[3:])
