"""Checkpoints: read back as written, the newest and the best kept, whole whatever happens while one is written."""

import errno
import os
import shutil

import pytest
import torch

from eyas.base.errors import UserError
from eyas.train.records import checkpoints
from eyas.train.records.checkpoints import Checkpoint, Checkpoints, write_atomically


def checkpoint(step):
    generator = torch.Generator().manual_seed(step)
    head = {"fc.weight": torch.randn(4, 3, generator=generator), "norm.weight": torch.randn(4, generator=generator)}
    return Checkpoint(step=step, head=head, optimizer={"0.1.step": torch.tensor(float(step))}, state={"best": [1.5, 3]})


def same(a, b):
    assert a.step == b.step and a.state == b.state
    for mine, other in ((a.head, b.head), (a.optimizer, b.optimizer)):
        assert mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


def test_a_checkpoint_reads_back(tmp_path):
    store = Checkpoints(tmp_path / "checkpoints", keep=2)
    store.save(checkpoint(10), best_step=None)
    same(store.load(), checkpoint(10))


def test_the_newest_and_the_best_are_kept(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    for step in (10, 20, 30, 40, 50):
        store.save(checkpoint(step), best_step=20 if step >= 20 else None)
    assert store.steps() == [20, 40, 50]
    same(store.load(20), checkpoint(20))
    same(store.load(), checkpoint(50))
    with pytest.raises(UserError, match="no checkpoint of step 30"):
        store.load(30)


def test_without_a_checkpoint_the_error_says_so(tmp_path):
    with pytest.raises(UserError, match="has no checkpoint"):
        Checkpoints(tmp_path / "none", keep=1).load()


@pytest.mark.parametrize("number", range(6))
def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch, number):
    """The write fails at each of its steps in turn."""
    store = Checkpoints(tmp_path, keep=2)
    store.save(checkpoint(10), best_step=None)
    calls = []

    def failing(handle):
        calls.append(handle)
        if len(calls) == number + 1:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints.os, "fsync", failing)
    try:
        store.save(checkpoint(20), best_step=None)
        assert len(calls) <= number, "the failure must have been reached"
    except UserError as error:
        assert "No space left on device" in str(error) and "checkpoint of step" in str(error)
        assert store.load().step in (10, 20)  # the rename may have been done
        assert not list(tmp_path.glob(".partial*"))
    monkeypatch.undo()
    same(store.load(10), checkpoint(10))
    store.save(checkpoint(20), best_step=None)
    same(store.load(), checkpoint(20))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="mounting a small disk needs root")
def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=64k tmpfs {disk} 2>/dev/null"):
        pytest.skip("mounting is not allowed here")
    try:
        store = Checkpoints(disk / "checkpoints", keep=2)
        store.save(checkpoint(10), best_step=None)
        large = Checkpoint(step=20, head={"fc.weight": torch.randn(64, 1024)}, optimizer={}, state={})
        with pytest.raises(UserError, match="the checkpoint of step 10 is whole"):
            store.save(large, best_step=None)
        same(store.load(), checkpoint(10))
    finally:
        os.system(f"umount {disk}")


def test_what_a_killed_process_left_is_cleared_away(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    store.save(checkpoint(10), best_step=None)
    (tmp_path / ".partial-15").mkdir()
    (tmp_path / ".partial-15" / "head.safetensors").write_bytes(b"half")
    assert store.steps() == [10]
    store.save(checkpoint(20), best_step=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000020"]


@pytest.mark.parametrize("name", ["head.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_named(tmp_path, name):
    store = Checkpoints(tmp_path, keep=2)
    store.save(checkpoint(10), best_step=None)
    (tmp_path / "step-00000010" / name).write_bytes(b"\x80")
    with pytest.raises(UserError, match=r"step-00000010 is damaged .* delete it"):
        store.load()


def test_text_is_written_atomically(tmp_path):
    path = tmp_path / "a.json"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_checkpoint_that_was_half_deleted_is_none(tmp_path, monkeypatch):
    store = Checkpoints(tmp_path, keep=1)
    store.save(checkpoint(10), best_step=None)
    real = shutil.rmtree

    def fail_halfway(path, ignore_errors=False):
        if path.exists():
            next(path.iterdir()).unlink()
            raise OSError(errno.EIO, "killed")

    monkeypatch.setattr(checkpoints.shutil, "rmtree", fail_halfway)
    store.save(checkpoint(20), best_step=None)
    assert store.steps() == [20] and len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(checkpoints.shutil, "rmtree", real)
    store.save(checkpoint(30), best_step=None)  # clears away what is left
    assert store.steps() == [30] and len(list(tmp_path.iterdir())) == 1


def test_other_folders_are_no_checkpoints(tmp_path):
    store = Checkpoints(tmp_path, keep=2)
    store.save(Checkpoint(step=10, head={}, optimizer={}, state={"best": {"step": 7}}), best_step=None)
    shutil.copytree(tmp_path / "step-00000010", tmp_path / "step-00000010 (copy)")
    assert store.steps() == [10] and store.best_step() == 7
