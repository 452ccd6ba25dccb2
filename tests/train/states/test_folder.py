"""Captured folders: values of the source bit for bit, killed and resumed, a full disk, folders of something else."""

import json
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch
from tests.train.support.batches import batch_of, document_of, random_documents

from eyas.base.errors import UserError
from eyas.model.making.make import make_target
from eyas.model.making.presets import PRESETS
from eyas.train.states.folder import capture, open_folder
from eyas.train.states.opening import find_target, open_target

CPU, TINY = torch.device("cpu"), PRESETS["tiny"]
TAPS = (2, 4, 5)
LENGTHS = (30, 1, 64, 90, 17, 45, 200)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return make_target(TINY, tmp_path_factory.mktemp("folder") / "target", seed=1)


@pytest.fixture(scope="module")
def source(target):
    return open_target(find_target(str(target), device="cpu"), taps=TAPS, longest=256)


@pytest.fixture(scope="module")
def documents():
    return [document_of(ids, f"chats.jsonl:{n}") for n, ids in enumerate(random_documents(TINY.vocab_size, LENGTHS))]


def batch(documents):
    return batch_of([document.ids_T.tolist() for document in documents])


def opened(folder, **changes):
    return open_folder(folder, **{"taps": TAPS, "device": CPU, "dtype": torch.float32} | changes)


def complaint(function, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same(one, other):
    return all(x is y is None or torch.equal(x, y) for x, y in zip(one, other, strict=True))


def test_it_gives_what_the_target_gives(source, documents, tmp_path):
    told = []
    again = [*documents, documents[0]]  # a document that comes twice is kept once
    assert capture(source, again, tmp_path / "s", progress=lambda *at: told.append(at), shard_bytes=80_000) == 7
    assert told[-1] == (sum(LENGTHS), sum(LENGTHS)) and len(list((tmp_path / "s").glob("states-*"))) > 2
    folder = opened(tmp_path / "s", fingerprint=source.fingerprint)
    assert len(folder) == 7 and (folder.config, folder.taps, folder.labels_only) == (source.config, TAPS, False)
    assert same(folder.teacher, source.teacher)
    some = batch([documents[6], documents[1], documents[3]])
    assert same(folder.states(some), source.states(some))
    before = files_of(tmp_path / "s")
    assert capture(source, documents, tmp_path / "s") == 0 and files_of(tmp_path / "s") == before


def test_labels_are_the_most_likely_tokens(source, documents, tmp_path, monkeypatch):
    monkeypatch.setattr("eyas.train.states.folder._TILE_ELEMENTS", 20 * TINY.vocab_size)
    capture(source, documents, tmp_path / "s", labels_only=True)
    assert "labels only" in complaint(opened, tmp_path / "s")
    found = opened(tmp_path / "s", labels_suffice=True).states(batch(documents))
    expected = source.states(batch(documents))
    assert found.last_TH is None and torch.equal(found.taps_TC, expected.taps_TC)
    assert torch.equal(found.best_T, (expected.last_TH @ source.teacher.lm_head_VH.T).argmax(-1))
    assert "kind labels, not last" in complaint(capture, source, documents, tmp_path / "s")


def test_an_unknown_document_is_named(source, documents, tmp_path):
    capture(source, documents[:2], tmp_path / "s")
    message = complaint(opened(tmp_path / "s").states, batch(documents[:3]))
    assert message.startswith("chats.jsonl:3, turn 1: ") and "eyas train capture" in message


_CAPTURE = """
import sys
from pathlib import Path
from tests.train.support.batches import document_of, random_documents
from eyas.model.making.presets import PRESETS
from eyas.train.states.folder import capture
from eyas.train.states.opening import find_target, open_target
documents = [document_of(ids) for ids in random_documents(PRESETS["tiny"].vocab_size, [60] * 2000)]
source = open_target(find_target(sys.argv[1], device="cpu"), taps=(2, 4, 5), longest=256)
capture(source, documents, Path(sys.argv[2]), shard_bytes=100_000)
"""


@pytest.mark.slow
def test_killed_and_resumed(target, source, tmp_path):
    """After a kill at some write, what is there is whole, and the rest is added."""
    folder = tmp_path / "s"
    process = subprocess.Popen([sys.executable, "-c", _CAPTURE, str(target), str(folder)])
    try:
        deadline = time.monotonic() + 60
        while len(list(folder.glob("states-*"))) < 3 and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (folder / ".partial-states-00099.safetensors").write_bytes(b"half")
    kept = len(opened(folder))
    assert 0 < kept < 2000
    before = files_of(folder)
    documents = [document_of(ids) for ids in random_documents(TINY.vocab_size, [60] * 2000)][: kept + 20]
    assert capture(source, documents, folder) == 20
    after = files_of(folder)
    assert not [name for name in after if "partial" in name]
    assert all(after[name] == data for name, data in before.items() if "partial" not in name)
    assert same(opened(folder).states(batch(documents[-30:])), source.states(batch(documents[-30:])))


def test_a_full_disk_leaves_what_is_there(source, documents, tmp_path):
    capture(source, documents[:3], tmp_path / "s")
    before, limits = files_of(tmp_path / "s"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # no file may grow larger
    try:
        message = complaint(capture, source, documents, tmp_path / "s")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "cannot write" in message and "what was captured is whole" in message
    assert files_of(tmp_path / "s") == before
    assert capture(source, documents, tmp_path / "s") == 4


def test_folders_of_something_else(source, documents, tmp_path):
    folder = tmp_path / "s"
    assert "no folder of captured states" in complaint(opened, tmp_path)
    capture(source, documents[:1], folder)
    assert "another target" in complaint(opened, folder, fingerprint="0" * 32)
    assert "holds the taps [2, 4, 5], the head reads [1, 2]" in complaint(opened, folder, taps=(1, 2))
    assert "in float32, cpu computes in bfloat16" in complaint(opened, folder, dtype=torch.bfloat16)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    assert "holds other files" in complaint(capture, source, documents, tmp_path / "other")
    assert "File exists" in complaint(capture, source, documents, tmp_path / "other" / "x")


def test_a_folder_of_another_target_is_not_added_to(source, documents, tmp_path):
    capture(source, documents[:1], tmp_path / "s")
    other = make_target(TINY, tmp_path / "target", seed=2)
    other = open_target(find_target(str(other), device="cpu"), taps=TAPS, longest=256)
    assert other.fingerprint != source.fingerprint
    assert "of another target" in complaint(capture, other, documents, tmp_path / "s")


@pytest.mark.parametrize("name", ["index.json", "teacher.safetensors", "states-00000.safetensors"])
def test_a_damaged_file_is_named(source, documents, tmp_path, name):
    capture(source, documents, tmp_path / "s")
    path = tmp_path / "s" / name
    path.write_bytes(path.read_bytes()[:-20])
    assert name in complaint(opened, tmp_path / "s")


def test_an_index_that_makes_no_sense(source, documents, tmp_path):
    capture(source, documents[:1], tmp_path / "s")
    path = tmp_path / "s" / "index.json"
    index = json.loads(path.read_text())
    for change in ({"config": 3}, {"config": {"rope": {}}}, {"config": index["config"] | {"colour": 1}}):
        path.write_text(json.dumps(index | change))
        assert "damaged" in complaint(opened, tmp_path / "s")
    path.write_text(json.dumps(index | {"format": 2}))
    assert "another format" in complaint(opened, tmp_path / "s")
