"""Downloads, against a small hub of our own on this machine; huggingface_hub itself judges what came."""

import contextlib
import hashlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from huggingface_hub import snapshot_download
from msgspec.structs import replace
from tests.fleet.support.box_plans import small_plan
from tests.fleet.support.small_hub import COMMIT, small_hub
from tests.fleet.support.stand_ins import put

from eyas.base.errors import UserError
from eyas.fleet.machines.node import LocalNode
from eyas.fleet.models import download, vocabulary
from eyas.fleet.models.download import HubError, fetch, needs
from eyas.recipes.plan import Download

REPO = "someone/model"


def shard(number):
    tensors = {"w": np.frombuffer(random.Random(number).randbytes(600_000 + number), np.uint8)}
    return safetensors.numpy.save(tensors, {"format": "pt"})


SHARDS = {f"model-0000{i}-of-00002.safetensors": shard(i) for i in (1, 2)}
INDEX = {"weight_map": {f"w{i}": name for i, name in enumerate(SHARDS)}}
FILES = {
    "config.json": b"{}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    **SHARDS,
    "original/model.safetensors": b"o" * 5000,
    "metal/model.bin": b"m" * 5000,
}
WANTED = ("config.json", "model.safetensors.index.json", *SHARDS)
SIZE = sum(len(FILES[name]) for name in WANTED)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(download, "POLL_S", 0.01)
    with small_hub() as server:
        server.files[REPO] = FILES
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "it's a $HOME"


def plan(cache, repo=REPO, **fields):
    wanted = Download(repo=repo, num_bytes=SIZE, exclude=("original/*", "metal/*"), **fields)
    return small_plan(downloads=(wanted,), cache=str(cache))


def brought(cache):
    """The snapshot as huggingface_hub finds it without a network, as every engine will."""
    return Path(snapshot_download(REPO, cache_dir=cache / "hub", local_files_only=True))


def test_everything_but_the_twins_comes_once_and_is_what_the_hub_has(hub, cache):
    (need,) = needs(plan(cache), LocalNode())
    assert (need.total_bytes, need.missing_bytes, need.is_complete) == (SIZE, SIZE, False)
    assert need.free_bytes > 0
    assert not cache.exists()
    told = []
    fetch(plan(cache), LocalNode(), told.append)
    folder = brought(cache)
    assert folder.name == COMMIT
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {name: FILES[name] for name in WANTED}
    assert told[-1].done_bytes == told[-1].total_bytes == SIZE
    assert [item.done_bytes for item in told] == sorted(item.done_bytes for item in told)
    assert not list(cache.rglob("*.incomplete"))
    hub.asked.clear()
    fetch(plan(cache), LocalNode(), lambda _: None)
    assert hub.fetched() == []


@pytest.mark.slow
def test_an_interrupted_download_goes_on_where_it_stopped(hub, cache):
    big = random.Random(3).randbytes(12 << 20)
    hub.files[REPO] = {"config.json": b"{}", "big.safetensors": big}
    hub.cut_after, hub.fails_after_cut = 11 << 20, True
    with pytest.raises(HubError, match=r"was interrupted.*try again, it resumes"):
        fetch(plan(cache), LocalNode(), lambda _: None)
    (partial,) = [path for path in cache.rglob("*.incomplete") if path.stat().st_size]
    arrived = partial.stat().st_size
    assert 0 < arrived <= 11 << 20
    (need,) = needs(plan(cache), LocalNode())
    assert need.missing_bytes <= need.total_bytes - arrived
    hub.fails_after_cut = False
    hub.asked.clear()
    fetch(plan(cache), LocalNode(), lambda _: None)
    assert ("big.safetensors", f"bytes={arrived}-") in hub.fetched()
    assert (brought(cache) / "big.safetensors").read_bytes() == big


@pytest.mark.slow
def test_a_file_that_was_cut_off_in_the_cache_is_not_complete(hub, cache):
    fetch(plan(cache), LocalNode(), lambda _: None)
    shard, small = brought(cache) / next(iter(SHARDS)), brought(cache) / "config.json"
    os.truncate(shard, 1000)
    os.truncate(small, 0)
    (need,) = needs(plan(cache), LocalNode())
    assert need.missing_bytes == len(SHARDS[shard.name]) - 1000 + len(FILES["config.json"])
    assert not need.is_complete
    hub.asked.clear()
    fetch(plan(cache), LocalNode(), lambda _: None)
    assert sorted(hub.fetched()) == [("config.json", None), (shard.name, "bytes=1000-")]
    assert all((brought(cache) / name).read_bytes() == FILES[name] for name in WANTED)


@pytest.mark.slow
def test_a_dropped_connection_alone_does_not_end_a_download(hub, cache):
    hub.cut_after = 200_000
    fetch(plan(cache), LocalNode(), lambda _: None)
    assert all((brought(cache) / name).read_bytes() == FILES[name] for name in WANTED)


def test_content_that_arrives_damaged_is_thrown_away(hub, cache):
    (need,) = needs(plan(cache), LocalNode())
    name = next(iter(SHARDS))
    digest = hashlib.sha256(SHARDS[name]).hexdigest()
    partial = Path(need.folder) / f"{digest}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"not the beginning of it")
    with pytest.raises(HubError, match="wrong checksum"):
        fetch(plan(cache), LocalNode(), lambda _: None)
    assert not partial.exists()
    assert not partial.with_suffix("").exists()


def test_a_gated_model_needs_a_token_and_takes_one(hub, cache, monkeypatch):
    hub.gated.add(REPO)
    with pytest.raises(HubError, match=r"asks for consent first; accept its terms on the hub and set HF_TOKEN$"):
        needs(plan(cache), LocalNode())
    monkeypatch.setenv("HF_TOKEN", hub.token)
    fetch(plan(cache), LocalNode(), lambda _: None)
    assert hub.tokens == {hub.token}
    assert hub.token not in "".join(path.read_text(errors="replace") for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("repo", "revision", "words"),
    [("someone/else", None, "not on the hub, or private"), (REPO, "v9", "no such revision")],
)
def test_what_the_hub_does_not_have(hub, cache, repo, revision, words):
    with pytest.raises(HubError, match=words):
        fetch(plan(cache, repo, revision=revision), LocalNode(), lambda _: None)
    assert not cache.exists()


@pytest.mark.slow
def test_without_a_network_what_is_complete_does(hub, cache, monkeypatch):
    fetch(plan(cache), LocalNode(), lambda _: None)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    fetch(plan(cache), LocalNode(), lambda _: None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fetch(plan(cache), LocalNode(), lambda _: None)
    shard = brought(cache) / next(iter(SHARDS))
    for spoil in (lambda: os.truncate(shard, 300_000), lambda: os.truncate(shard, 20), shard.unlink):
        spoil()
        with pytest.raises(HubError, match="is not cached and the hub cannot be reached"):
            fetch(plan(cache), LocalNode(), lambda _: None)


def test_a_plan_with_a_folder_of_its_own_downloads_nothing(hub, cache):
    fetch(small_plan(downloads=(), model_path="/models/mine", cache=str(cache)), LocalNode(), lambda _: None)
    assert hub.asked == []


@pytest.mark.slow
def test_two_downloads_of_the_same_do_not_meet(hub, cache):
    import fcntl

    (need,) = needs(plan(cache), LocalNode())
    digest = hashlib.sha256(next(iter(SHARDS.values()))).hexdigest()
    partial = Path(need.folder) / f"{digest}.incomplete"
    partial.parent.mkdir(parents=True)
    with partial.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(HubError, match="being downloaded already"):
            fetch(plan(cache), LocalNode(), lambda _: None)


def test_more_than_the_disk_holds_is_refused_before_anything_comes(hub, cache, monkeypatch):
    real = download.look
    monkeypatch.setattr(download, "look", lambda *args: replace(real(*args), free_bytes=SIZE - 1))
    with pytest.raises(HubError, match=r"still to download to here.*eyas models rm"):
        fetch(plan(cache), LocalNode(), lambda _: None)
    assert not cache.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_fills_up_is_one_line_and_keeps_what_came(hub, tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "none", str(disk)], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        real = download.look
        monkeypatch.setattr(download, "look", lambda *args: replace(real(*args), free_bytes=1 << 40))
        with pytest.raises(HubError, match="the disk is full while downloading"):
            fetch(plan(disk), LocalNode(), lambda _: None)
        assert any(path.stat().st_size for path in disk.rglob("*") if path.is_file())
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_ctrl_c_ends_the_download_and_what_came_stays(hub, cache, tmp_path):
    hub.files[REPO] = {"big.safetensors": bytes(12 << 20)}
    hub.cut_after, hub.stalls = 11 << 20, True
    program = tmp_path / "fetch.py"
    program.write_text(
        "import sys\nfrom eyas.fleet.models.download import fetch\nfrom eyas.fleet.machines.node import LocalNode\n"
        "from tests.fleet.models.test_download import plan\nfetch(plan(sys.argv[1]), LocalNode(), lambda told: None)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(program), str(cache)],
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a script's background ignores it
    )
    while not any(path.stat().st_size for path in cache.rglob("*.incomplete")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert b"KeyboardInterrupt" in err
    partial = next(cache.rglob("*.incomplete"))
    while _writers(partial):
        time.sleep(0.01)
    shutil.rmtree(cache)


def _writers(path):
    """Processes that have `path` open."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # processes come and go
            for link in os.listdir(process / "fd"):  # noqa: PTH208
                with contextlib.suppress(OSError):
                    found += [link] if (process / "fd" / link).readlink() == path else []
    return found


def test_vocabulary_files_are_taken_from_this_machine(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path / "own"))
    content = {"o200k_base.tiktoken": b"IQ== 0\n" * 1000, "cl100k_base.tiktoken": bytes(range(256))}
    monkeypatch.setattr(
        vocabulary, "DIGESTS", {name: hashlib.sha256(text).hexdigest() for name, text in content.items()}
    )
    for name, text in content.items():
        (tmp_path / "own" / name).write_bytes(text)
    wanted = small_plan(features=("vocab-files",))
    assert set(vocabulary.lacking(LocalNode())) == set(content)
    fetch(wanted, LocalNode(), lambda _: None)
    assert vocabulary.lacking(LocalNode()) == ()
    folder = tmp_path / vocabulary.HOME.path
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == content


def test_vocabulary_files_that_cannot_be_had_are_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TIKTOKEN_ENCODINGS_BASE", raising=False)
    nowhere = re.sub(r"--retry \d+", "", re.sub(r"https://[^/]+", "http://127.0.0.1:9", vocabulary.FETCH))
    monkeypatch.setattr(vocabulary, "FETCH", nowhere)
    with pytest.raises(UserError, match=r"cannot get the vocabulary.*put o200k_base.tiktoken and cl100k_base.tiktoken"):
        fetch(small_plan(features=("vocab-files",)), LocalNode(), lambda _: None)


class Far(LocalNode):
    """This machine as if it were another: the interpreter is looked for there."""

    is_local = False


@pytest.mark.parametrize(
    ("where", "start"), [("plain", "#!{}"), ("with space", "#!/bin/sh\n'''exec' \"{}\" \"$0\" \"$@\"\n' '''")]
)
def test_on_another_machine_the_interpreter_of_hf_does_the_work(hub, cache, tmp_path, monkeypatch, where, start):
    folder = tmp_path / "bin"
    put(folder, "python3", "exit 1")  # one without huggingface_hub
    python = put(tmp_path / where, "python", f'exec {shlex.quote(sys.executable)} "$@"')
    (folder / "hf").write_text(f"{start.format(python)}\nimport sys\n")  # as pip writes it
    (folder / "hf").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    fetch(plan(cache), Far("far"), lambda _: None)
    assert (brought(cache) / "config.json").read_bytes() == FILES["config.json"]


def test_another_machine_without_huggingface_hub_is_one_line(hub, cache, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    put(folder, "python3", f'exec {shlex.quote(sys.executable)} -S "$@"')  # none of the installed packages
    put(folder, "hf", "exit 1")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with pytest.raises(HubError, match=r"no huggingface_hub for python3 on far; run there: pipx "):
        fetch(plan(cache), Far("far"), lambda _: None)
