"""The cache of models: its sizes against du, its uses against real processes, and the commands around it."""

import json
import mmap
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir
from tests.fleet.support.box_plans import small_plan

from eyas.base.errors import UserError
from eyas.base.settings.home import home
from eyas.cli import main
from eyas.fleet.models.cache import cache_folder, entries, find, hub_folder, remove
from eyas.fleet.running.state import Store
from eyas.recipes.plan import Download

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "openai/gpt-oss-120b"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("EYAS_HOME", str(tmp_path / "eyas"))
    return tmp_path / "hf" / "hub"


def put(hub, repo, *sizes, partial=0):
    """A repository as huggingface_hub lays it out."""
    folder = hub / f"models--{repo.replace('/', '--')}"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for number, size in enumerate(sizes):
        blob = folder / "blobs" / f"{number:064x}"
        blob.write_bytes(b"x" * size)
        (snapshot / f"model-{number}.safetensors").symlink_to(f"../../blobs/{blob.name}")
    if partial:
        (folder / "blobs" / "abc.1234.incomplete").write_bytes(b"x" * partial)
    (hub / ".locks" / folder.name).mkdir(parents=True)
    return folder


def on_disk(folder):
    """Bytes of files below `folder`, as du counts them."""
    listed = subprocess.run(["du", "-s", "-B1", str(folder)], capture_output=True, text=True, check=True).stdout
    folders = sum(path.stat().st_blocks * 512 for path in [folder, *folder.rglob("*")] if path.is_dir())
    links = sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_symlink())
    return int(listed.split()[0]) - folders - links


def test_sizes_are_those_of_the_disk_and_agree_with_huggingface_hub(hub):
    folder = put(hub, REPO, 100_000, 300_000, partial=50_000)
    put(hub, "lmsys/head", 1000)
    large, small = entries(hub)
    assert (large.repo, small.repo) == (REPO, "lmsys/head")
    assert large.disk_bytes == on_disk(folder)
    assert 50_000 <= large.partial_bytes < 60_000
    assert (large.revisions, large.used_by) == (("main",), ())
    theirs = {item.repo_id: item for item in scan_cache_dir(hub).repos}
    assert large.disk_bytes - large.partial_bytes >= theirs[REPO].size_on_disk
    assert {item.repo for item in (large, small)} == set(theirs)


def test_a_repository_is_found_by_its_name_alone(hub):
    put(hub, REPO, 1)
    put(hub, "other/gpt-oss-120b", 1)
    put(hub, "lmsys/head", 1)
    assert find(entries(hub), "HEAD").repo == "lmsys/head"
    assert find(entries(hub), REPO).repo == REPO
    with pytest.raises(UserError, match="is the name of"):
        find(entries(hub), "gpt-oss-120b")
    with pytest.raises(UserError, match="did you mean 'lmsys/head'"):
        find(entries(hub), "lmsys/haed")


def test_removing_frees_what_it_says(hub):
    folder = put(hub, REPO, 100_000, 300_000, partial=50_000)
    kept = put(hub, "lmsys/head", 1000)
    said = on_disk(folder)
    assert remove(find(entries(hub), REPO)) == said
    assert not folder.exists()
    assert [path.name for path in (hub / ".locks").iterdir()] == [kept.name]
    assert [entry.repo for entry in entries(hub)] == ["lmsys/head"]


def test_what_a_process_has_mapped_stays(hub):
    folder = put(hub, REPO, 8192)
    blob = next((folder / "blobs").iterdir())
    with blob.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (entry,) = entries(hub)
    assert any(f"(pid {os.getpid()})" in user for user in entry.used_by)
    with pytest.raises(UserError, match="is in use by"):
        remove(entry)
    mapped.close()
    assert entries(hub)[0].used_by == ()


def test_what_a_deployment_needs_stays_as_long_as_it_runs(hub):
    folder = put(hub, REPO, 1000)
    store = Store(home(os.environ))
    store.put(small_plan(downloads=(Download(repo=REPO, num_bytes=1),), name="mine"))
    store.record("mine", "ready", "answers")
    assert entries(hub, store.rows())[0].used_by == ("mine",)
    assert main(["models", "rm", REPO, "--yes"]) == 1
    store.record("mine", "stopped", "stopped")
    assert entries(hub, store.rows())[0].known_to == ("mine",)
    assert main(["models", "rm", REPO, "--yes"]) == 0
    assert not folder.exists()


def test_the_list(hub, capsys):
    assert main(["models", "list"]) == 0
    assert "no models in" in capsys.readouterr().out
    put(hub, REPO, 2 << 20, partial=1 << 20)
    assert main(["models", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["REPOSITORY", "SIZE", "REVISION", "LAST", "USED", "USED", "BY"]
    assert lines[1].split()[:4] == [REPO, "3.0", "MiB", "main"]
    assert "parts of downloads that never ended" in lines[-1]
    assert main(["models", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["repo"] == REPO


def test_removing_asks_first(hub, capsys):
    folder = put(hub, REPO, 1000)
    command = [sys.executable, "-m", "eyas", "models", "rm", REPO]
    answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (answer.returncode, "give --yes" in answer.stderr) == (1, True)
    for reply, is_there in ((b"n\n", True), (b"y\n", False)):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE)
        os.write(ours, reply)
        out, _ = process.communicate(timeout=60)
        os.close(ours)
        os.close(theirs)
        assert process.returncode == 0
        assert folder.exists() == is_there
    assert b"freed" in out


def test_nothing_is_removed_if_one_of_several_cannot_be(hub):
    folder, used = put(hub, REPO, 1000), put(hub, "lmsys/head", 1000)
    with next((used / "blobs").iterdir()).open("rb"):
        assert main(["models", "rm", REPO, "lmsys/head", "--yes"]) == 1
    assert folder.exists()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/c"}, "/c"),
        ({"HF_HOME": "/h"}, "/h/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({}, str(Path("~/.cache/huggingface/hub").expanduser())),
    ],
)
def test_where_the_cache_is(environ, expected):
    assert str(hub_folder(environ)) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/c/hub", "HF_HOME": "/h"}, "/c"),
        ({"HF_HOME": "/h"}, "/h"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface"),
        ({}, None),
    ],
)
def test_a_plan_uses_the_cache_that_is_listed(environ, expected):
    assert cache_folder(environ) == expected


def test_a_cache_that_engines_would_not_find_is_refused():
    with pytest.raises(UserError, match=r"HF_HUB_CACHE is /c/models.*--cache DIR"):
        cache_folder({"HF_HUB_CACHE": "/c/models"})


def test_a_linked_repository_is_not_removed(hub, tmp_path, capsys):
    folder = put(hub, REPO, 1000)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert main(["models", "rm", REPO, "--yes"]) == 1
    assert f"is a link to {tmp_path / 'elsewhere'}; delete both by hand" in capsys.readouterr().err
    assert (tmp_path / "elsewhere" / "refs").is_dir()


def test_names_in_the_cache_are_printed_without_their_escapes(hub, capsys):
    folder = put(hub, "lmsys/\x1b[31mhead\udcff", 1000)
    (folder / "refs" / "odd").write_bytes(b"\xff\n")
    assert main(["models", "list"]) == 0
    assert "lmsys/head?" in capsys.readouterr().out


def test_the_list_needs_no_state_folder(hub, capsys, monkeypatch):
    put(hub, REPO, 1000)
    monkeypatch.setenv("EYAS_HOME", "/proc/none")
    assert main(["models", "list"]) == 0
    assert REPO in capsys.readouterr().out
