"""Runs as files: read back exactly, and one clear line for whatever is none."""

import json
import random

import jsonschema_rs
import msgspec
import pytest
from tests.bench.endpoint.support.hostile import hostile_run
from tests.bench.endpoint.support.pictures import pictures
from tests.bench.endpoint.support.synthetic import synthetic_run, write_journal

from eyas.base.errors import UserError
from eyas.bench.endpoint.journal import Run
from eyas.bench.endpoint.records import Memory
from eyas.bench.endpoint.reports.markdown import markdown
from eyas.bench.endpoint.reports.page import page
from eyas.bench.endpoint.reports.run_file import load_run, run_json, schema, warn_if_cut_short
from eyas.bench.endpoint.reports.summary import summary
from eyas.bench.endpoint.reports.table import figures_json


@pytest.fixture(scope="module")
def run():
    small = synthetic_run(arms=(0, 2), concurrencies=(1, 2), turns=2, num_requests=3)
    fields = {name: getattr(small.windows[0], name) for name in small.windows[0].__struct_fields__}
    first = type(small.windows[0])(**fields | {"memory": Memory(used_bytes=3 << 30, source="driver")})
    return Run(header=small.header, windows=(first, *small.windows[1:]))


@pytest.fixture(scope="module")
def data(run):
    return run_json(run, figures_json(summary(run)))


def refused(path, data):
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        load_run(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text and len(text) < 400
    return text


def test_a_document_is_read_back_exactly(run, data, tmp_path):
    (tmp_path / "run.json").write_bytes(data)
    assert load_run(tmp_path / "run.json") == run


def test_the_file_of_a_run_is_read_back_exactly(run, tmp_path):
    write_journal(tmp_path / "run.jsonl", run)
    assert load_run(tmp_path / "run.jsonl") == run


def test_hostile_texts_come_back_as_they_were(tmp_path):
    run = hostile_run()
    (tmp_path / "run.json").write_bytes(run_json(run, figures_json(summary(run))))
    write_journal(tmp_path / "run.jsonl", run)
    assert load_run(tmp_path / "run.json") == load_run(tmp_path / "run.jsonl") == run


def test_the_schema_describes_the_document(data):
    description = schema()
    jsonschema_rs.meta.validate(description)
    validator = jsonschema_rs.validator_for(description)
    document = json.loads(data)
    validator.validate(document)
    for path in (["format"], ["header", "stamp"], ["windows", 0, "load"], ["windows", 0, "records", 0, "sent_s"]):
        wrong = json.loads(data)
        *way, last = path
        item = wrong
        for step in way:
            item = item[step]
        item[last] = "wrong"
        assert not validator.is_valid(wrong), path
    text = json.dumps(description)
    assert "server's own (`usage`)" in text and "One arm under one load, once" in text


def test_figures_are_ignored_when_it_is_read(run, data, tmp_path):
    document = json.loads(data)
    document["figures"] = {"cells": ["anything"]}
    (tmp_path / "run.json").write_bytes(json.dumps(document).encode())
    assert load_run(tmp_path / "run.json").windows == run.windows


def test_a_document_cut_anywhere_is_refused(data, tmp_path):
    for size in sorted(random.Random(1).sample(range(12, len(data) - 2), 60)):
        assert "cut short" in refused(tmp_path / "run.json", data[:size])


def test_a_file_of_a_run_may_end_in_half_a_line(run, tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    write_journal(path, run)
    warn_if_cut_short(path)
    assert capsys.readouterr().err == ""
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    warn_if_cut_short(path)
    assert "run.jsonl: the last line was cut short and is left out" in capsys.readouterr().err
    assert load_run(path).windows == run.windows[:-1]


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\n", b"\x00", b"\xff\xfe\x00", b"null\n", b"[]\n", b"{}\n", b'"text"\n', b"12\n", b"not JSON\n"),
        b'{"format": "eyas bench endpoint 2", "header": {}, "windows": []}',
        b'{"format": "eyas bench endpoint 1"}',
        b'{"format": "eyas bench endpoint 1", "header": 1, "windows": []}',
        b'{"format": 1}',
        b'{"header": {"stamp": {}}}\n',
        b'{"prompt": "x"}\n{"prompt": "y"}\n',
        b'{"format":' + b"[" * 100_000,
        b'{"window":' + b"[" * 100_000 + b"\n",
        b'{"header": "\xff"}\n',
    ],
    ids=lambda data: data[:40].decode("latin1"),
)
def test_foreign_files_are_refused(data, tmp_path):
    refused(tmp_path / "foreign", data)


def test_missing_files_and_folders_are_refused(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="cannot be read"):
            load_run(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.update(ended_s=w["started_s"]), "before it starts"),
        (lambda w: w["load"].update(concurrency=0), "above 0"),
        (lambda w: w["load"].update(rate=1.5), "a concurrency or a rate"),
        (lambda w: w["load"].pop("concurrency"), "a concurrency or a rate"),
        (lambda w: w["records"][0].update(output_tokens=-1), "output_tokens is -1"),
        (lambda w: w["records"][0].update(scheduled_s=1e300), "never measured"),
        (lambda w: w["records"][0]["chunks"].__setitem__(0, [-1e9, "text", 1]), "at_s"),
        (lambda w: w.update(counts={"rounds": 1, "accepted": 1, "histogram": [0] * 5000}), "the length of histogram"),
        (lambda w: w.update(counts={"rounds": 1, "accepted": 1, "by_position": [-3]}), "by_position is -3"),
        (lambda w: w["lag"].update(cpu_share=1e200), "cpu_share"),
    ],
)
def test_values_that_were_never_measured_are_refused(data, tmp_path, change, words):
    document = json.loads(data)
    change(document["windows"][1])
    text = refused(tmp_path / "run.json", json.dumps(document).encode())
    assert words in text and "window 2" in text


def test_a_run_without_windows_is_refused(run, tmp_path):
    empty = Run(header=run.header, windows=())
    assert "no window yet" in refused(tmp_path / "run.json", msgspec.json.encode({"format": "eyas bench endpoint 1",
        "header": run.header, "windows": []}))  # fmt: skip
    write_journal(tmp_path / "empty.jsonl", empty)
    with pytest.raises(UserError, match="no window yet"):
        load_run(tmp_path / "empty.jsonl")


EXTREMES = (0, 1, 7, 1e-9, 1e-3, 1e6, 1e12, 1e15)


def spoilt(value, rng, share=0.02):
    """The same document with some of its numbers replaced by extreme ones, of chunks few."""
    if isinstance(value, dict):
        return {name: spoilt(item, rng) for name, item in value.items()}
    if isinstance(value, list):
        return [spoilt(item, rng, 0.0001) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool) and rng.random() < share:
        number = rng.choice(EXTREMES)
        return int(number) if isinstance(value, int) else number
    return value


def test_whatever_is_read_is_shown(data, tmp_path):
    """Numbers that fit the types, however odd: a file is refused in one line, or there is a report of it."""
    document, path = json.loads(data), tmp_path / "odd.json"
    del document["figures"]
    num_shown = 0
    for seed in range(30):
        path.write_text(json.dumps(spoilt(document, random.Random(seed))))
        try:
            run = load_run(path)
        except UserError as error:
            assert "\n" not in str(error)
            continue
        found = summary(run)
        drawn = pictures(page(run, found))
        assert markdown(found).startswith("### ") and all(plot.svg for plots in drawn.values() for plot in plots)
        num_shown += 1
    assert num_shown > 5


def test_speeds_beyond_all_numbers_are_refused(run):
    def stretched(window, factor):
        fields = {name: getattr(window, name) for name in window.__struct_fields__}
        records = []
        for record in window.records:
            chunks = tuple(type(c)(c.at_s * factor, c.kind, c.num_chars, c.tokens) for c in record.chunks)
            records.append(
                type(record)(**{n: getattr(record, n) for n in record.__struct_fields__} | {"chunks": chunks})
            )
        return type(window)(**fields | {"records": tuple(records)})

    factors = {("off", 0): 1e-150, ("off", 1): 1e150}
    windows = tuple(stretched(w, factors.get((w.arm, w.turn), 1)) for w in run.windows)
    with pytest.raises(UserError, match="more than numbers hold"):
        summary(Run(header=run.header, windows=windows))
