"""The tables: typed, sourced, dated, consistent with each other; and finding records by what people call them."""

import re
from collections import Counter
from datetime import date
from fnmatch import fnmatch

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import UserError
from eyas.base.serving.engines import EngineName
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import DATA, knowledge, read
from eyas.recipes.records import CPU, METAL, Engine, Hardware, Head, Measurement, Model
from eyas.recipes.versions import satisfies

KNOWN = knowledge()
TABLES = {"hardware": Hardware, "models": Model, "heads": Head, "engines": Engine, "measurements": Measurement}
RECORDS = [
    pytest.param(record, id=f"{table}/{record.name}")
    for table in TABLES
    for record in (getattr(KNOWN, table).values() if table != "measurements" else KNOWN.measurements)
]


# --- every record ---


@pytest.mark.parametrize("record", RECORDS)
def test_every_record_has_sources_and_a_date(record):
    assert record.sources
    assert all(source.strip() for source in record.sources)
    assert re.fullmatch(r"202[56](-(0[1-9]|1[012])(-[0-3]\d)?)?", record.date)


@pytest.mark.parametrize("table", TABLES)
def test_no_name_is_defined_twice(table):  # YAML would take the last one silently
    keys = [key.value for key, _ in yaml.compose((DATA / f"{table}.yaml").read_text()).value]
    assert [name for name, count in Counter(keys).items() if count > 1] == []
    assert len(keys) == len(read(DATA / f"{table}.yaml", TABLES[table]))


@pytest.mark.parametrize("table", ["hardware", "models", "heads", "engines"])
def test_no_two_records_answer_to_one_name(table):
    records = getattr(KNOWN, table).values()
    called = Counter()
    for record in records:
        repo = getattr(record, "repo", "")
        called.update({name.lower() for name in (record.name, *record.aliases, repo, repo.rpartition("/")[2]) if name})
    assert [name for name, count in called.items() if count > 1] == []


# --- references between the tables ---


@pytest.mark.parametrize("head", KNOWN.heads.values(), ids=lambda head: head.name)
def test_references_of_heads(head):
    assert head.target in KNOWN.models
    for engine, versions in head.engines.items():
        known = KNOWN.engines[engine]
        assert head.kind in known.spec_methods
        assert head.target in known.models
        assert satisfies(known.version, versions)  # the default version loads it
    for acceptance in head.acceptance:
        assert 1 <= acceptance.length <= acceptance.draft_tokens + 1
        assert acceptance.source
        assert acceptance.engine in {"", *KNOWN.engines}
        assert not acceptance.hardware or parse_box(acceptance.hardware)
    model = KNOWN.models[head.target]
    assert all(-1 <= tap < model.num_layers for tap in head.taps)
    assert head.step_bytes > 0 and head.kv_bytes_per_token > 0
    assert head.intended_context[0] < head.intended_context[1]
    assert head.intended_concurrency[0] <= head.intended_concurrency[1]


@pytest.mark.parametrize("engine", KNOWN.engines.values(), ids=lambda engine: engine.name)
def test_references_of_engines(engine):
    assert satisfies(engine.version, engine.versions)
    assert set(engine.models) <= set(KNOWN.models)
    assert set(engine.spec_methods) <= {"eagle3", "draft-model"}
    assert engine.ready_seconds[0] <= engine.ready_seconds[1]
    for model in KNOWN.models.values():  # who loads no safetensors must be told what to load instead
        if engine.runtime == "llama.cpp" and model.name in engine.models and model.name != "demo":
            assert engine.name in model.repos
    assert (engine.joined_by is not None) == (engine.max_nodes > 1)
    assert all(gpus % parts == 0 and engine.tensor_parallel for gpus, parts in engine.expert_parallel.items())
    assert engine.is_native or not engine.program  # images need no program, and images of GPUs no CPU
    assert engine.is_native == engine.runs_on(CPU)


def test_the_engines_are_those_of_the_types():
    assert set(KNOWN.engines) == set(EngineName.__args__)


def images_for(engine, hardware, nodes):
    return [
        image
        for image in engine.images
        if hardware.architectures[0] in image.architectures
        and image.nodes in ("any", nodes)
        and (
            not image.compute_capabilities
            or any(fnmatch(hardware.compute_capability, one) for one in image.compute_capabilities)
        )
    ]


@pytest.mark.parametrize("engine", [engine for engine in KNOWN.engines.values() if engine.images], ids=lambda e: e.name)
def test_there_is_an_image_for_every_box_that_the_engine_runs_on(engine):
    for hardware in KNOWN.hardware.values():
        if not any(fnmatch(hardware.compute_capability, one) for one in engine.compute_capabilities):
            continue
        for nodes in {"one" if count <= hardware.gpus_per_node else "many" for count in hardware.counts}:
            first = images_for(engine, hardware, nodes)[0]
            assert satisfies(first.version or engine.version, engine.versions), hardware.name


@pytest.mark.parametrize("measurement", KNOWN.measurements, ids=lambda measurement: measurement.name)
def test_references_of_measurements(measurement):
    assert measurement.model in KNOWN.models
    assert measurement.engine in KNOWN.engines
    assert parse_box(measurement.hardware).name == measurement.hardware
    assert measurement.tokens_per_second > 0
    if measurement.head:
        assert KNOWN.heads[measurement.head].target == measurement.model
        assert measurement.draft_tokens > 0
    if measurement.acceptance_length is not None:
        assert 1 <= measurement.acceptance_length <= measurement.draft_tokens + 1


TPOT = [m for m in KNOWN.measurements if "TPOT" in m.note]


@pytest.mark.parametrize("measurement", TPOT, ids=lambda measurement: measurement.name)
def test_rates_from_times_per_token(measurement):
    milliseconds = float(re.search(r"TPOT ([\d.]+) ms", measurement.note)[1])
    assert measurement.tokens_per_second == pytest.approx(measurement.concurrency / milliseconds * 1000, rel=2e-3)


@pytest.mark.parametrize("hardware", KNOWN.hardware.values(), ids=lambda hardware: hardware.name)
def test_hardware_is_plausible(hardware):
    assert 0 < hardware.usable_bytes <= hardware.memory_bytes
    if hardware.compute_capability == METAL:  # macOS keeps a quarter by itself
        assert hardware.unified and hardware.usable_bytes * 4 == hardware.memory_bytes * 3
    else:
        assert (hardware.os_reserve_bytes > 0) == hardware.unified
    assert (hardware.measured_bandwidth or 0) <= hardware.bandwidth
    assert hardware.counts[0] == 1 and list(hardware.counts) == sorted(set(hardware.counts))
    assert all(count <= hardware.gpus_per_node or count % hardware.gpus_per_node == 0 for count in hardware.counts)


def test_what_the_guides_get_wrong_about_hardware():
    known = KNOWN.hardware
    assert known["spark"].compute_capability == "12.1"
    assert known["rtx-pro-6000"].compute_capability == known["rtx-pro-6000-server"].compute_capability == "12.0"
    assert known["rtx-pro-6000-server"].bandwidth < known["rtx-pro-6000"].bandwidth
    assert known["h800"].bandwidth == known["h100"].bandwidth
    arms = {name for name, one in known.items() if one.architectures == ("aarch64",)}
    assert {name for name in arms if known[name].compute_capability != METAL} == {"spark", "gb200"}
    assert known["spark"].usable_bytes == pytest.approx(119.7 * 2**30, rel=1e-3)  # GiB; the guide says GB


def test_the_throughput_head_drafts_one_token():
    assert KNOWN.heads["nvidia-throughput"].max_draft_tokens == 1


# --- finding ---


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        ("model", "gpt-oss-120b", "gpt-oss-120b"),
        ("model", "openai/GPT-OSS-120b", "gpt-oss-120b"),
        ("model", " 20B ", "gpt-oss-20b"),
        ("model", "gpt-oss:120b", "gpt-oss-120b"),
        ("model", "ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b"),
        ("model", "nvidia/Qwen3-235B-A22B-FP4", "qwen3-235b-a22b-fp4"),
        ("model", "Llama-3.3-70B-Instruct-FP4", "llama-3.3-70b-fp4"),
        ("model", "demo", "demo"),
        ("head", "lmsys/EAGLE3-gpt-oss-120b-bf16", "lmsys-120b"),
        ("head", "gpt-oss-120b-eagle3-v3", "nvidia-v3"),
        ("head", "nvidia/gpt-oss-120b-Eagle3-v2", "nvidia-short-context"),
        ("head", "nvidia/gpt-oss-120b-Eagle3", "nvidia-v1"),
        ("head", "SpecDrift", "specdrift-120b"),
        ("engine", "SGLang", "sglang"),
        ("engine", "trtllm", "tensorrt-llm"),
        ("engine", "llama-server", "llama.cpp"),
    ],
)
def test_finding_by_name_alias_and_repository(kind, text, name):
    assert getattr(KNOWN, kind)(text).name == name


@given(st.sampled_from([*KNOWN.models.values()]), st.sampled_from([str.upper, str.lower, str.title]))
def test_case_does_not_matter(model, change):
    for text in (model.name, model.repo, *model.aliases):
        assert KNOWN.model(change(text)) == model


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("model", "gpt-oss-130b", "unknown model 'gpt-oss-130b' (did you mean 'gpt-oss-120b'?)"),
        ("head", "nvidia-v33", "unknown draft head 'nvidia-v33' (did you mean 'nvidia-v3'?)"),
        ("engine", "sglong", "unknown engine 'sglong' (did you mean 'sglang'?)"),
        ("engine", "?", "unknown engine '?'; known: eyas, sglang, tensorrt-llm, vllm, llama.cpp, ollama"),
    ],
)
def test_unknown_names(kind, text, message):
    with pytest.raises(UserError) as caught:
        getattr(KNOWN, kind)(text)
    assert str(caught.value) == message


def test_heads_of_a_model_come_in_order_of_recommendation():
    heads = KNOWN.heads_of(KNOWN.model("gpt-oss-120b"))
    assert heads[0].name == "nvidia-v3"
    assert [head.rank for head in heads] == sorted((head.rank for head in heads), reverse=True)
    assert {head.target for head in heads} == {"gpt-oss-120b"}
    assert [head.name for head in KNOWN.heads_of(KNOWN.model("demo"))] == ["demo-head"]
    assert KNOWN.heads_of(KNOWN.model("qwen3-32b")) == ()


# --- data that is wrong ---

RIGHT = {
    "title": "x", "versions": ">=1", "version": "1.0", "port": 1, "sources": ["x"], "date": "2026",
}  # fmt: skip


def write(path, content):
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def test_right_data_is_read(tmp_path):
    assert read(write(tmp_path / "engines.yaml", {"one": RIGHT}), Engine)["one"].port == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"one": RIGHT | {"prot": 1}}, "engines.yaml: one: .*`prot`"),
        ({"one": RIGHT | {"port": "1"}}, r"engines.yaml: one: .*`\$\.port`"),
        ({"one": RIGHT | {"version": 1.0}}, r"engines.yaml: one: .*`\$\.version`"),  # a version without quotes
        ({"one": RIGHT | {"date": date(2026, 11, 20)}}, r"engines.yaml: one: .*`\$\.date`"),  # a date without quotes
        ({"one": {key: value for key, value in RIGHT.items() if key != "sources"}}, "engines.yaml: one: .*`sources`"),
        ({"one": None}, "engines.yaml: one: expected a name"),
        ({5090: RIGHT}, "engines.yaml: 5090: expected a name"),
        ("- one\n- two\n", "engines.yaml: expected a mapping"),
        ("", "engines.yaml: expected a mapping"),
        ("one: [", r"engines.yaml: .*line \d"),
    ],
)
def test_wrong_data_is_an_error_that_names_file_entry_and_field(tmp_path, content, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        read(write(tmp_path / "engines.yaml", content), Engine)
