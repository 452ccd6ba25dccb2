"""The commit of a package, asked of real repositories, and what `eyas --version` makes of it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import eyas
from eyas.base import commit as module
from eyas.base.commit import commit_of

ROOT = Path(__file__).parents[2]
WHO = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")


def git(folder, *command):
    done = subprocess.run(["git", "-C", folder, *WHO, *command], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def committed(folder):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "x")
    return git(folder, "rev-parse", "HEAD")[:12]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package of a checkout with one commit."""
    for name in module.ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "checkout" / "src" / "eyas"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (tmp_path / "checkout" / "README").write_text("")
    git(tmp_path / "checkout", "init", "--quiet")
    committed(tmp_path / "checkout")
    return folder


def test_head_is_asked_each_time(package):
    first = committed(package)
    assert commit_of(package) == first
    git(package, "tag", "v9")
    assert commit_of(package) == first, "a tag changes nothing"
    second = committed(package)
    assert commit_of(package) == second != first


def test_changed_and_new_files_are_told(package):
    head = committed(package)
    readme = package.parents[1] / "README"
    readme.write_text("changed")
    assert commit_of(package) == f"{head}-dirty"
    git(package, "checkout", readme)
    (package.parents[1] / "notes").write_text("new, and in no wheel")
    assert commit_of(package) == head
    (package / "new.py").write_text("")
    assert commit_of(package) == f"{head}-dirty"
    readme.write_text("changed")
    assert commit_of(package) == f"{head}-dirty"
    (package / ".gitignore").write_text("new.py\n.gitignore\n")
    git(package, "checkout", readme)
    assert commit_of(package) == head


def test_a_shallow_clone_without_tags(package, tmp_path):
    head = committed(package)
    git(tmp_path, "clone", "--quiet", "--depth=1", "--no-tags", f"file://{package.parents[1]}", "clone")
    assert commit_of(tmp_path / "clone" / "src" / "eyas") == head


def test_what_is_not_known(package, tmp_path, monkeypatch):
    installed = package.parents[1] / "venv" / "eyas"
    shutil.copytree(package, installed)
    assert commit_of(installed) is None, "it lies in a checkout and is none of its files"
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "--quiet", "unborn")
    shutil.copy(package / "__init__.py", tmp_path / "unborn")
    git(tmp_path / "unborn", "add", "--all")
    assert commit_of(tmp_path / "unborn") is None, "there is no commit yet"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(package) is None, "there is no git"


def test_hooks_of_another_repository_do_not_mislead(package, tmp_path, monkeypatch):
    head = committed(package)
    git(tmp_path, "init", "--quiet", "other")
    (tmp_path / "other" / "__init__.py").write_text("")
    assert committed(tmp_path / "other") != head
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert commit_of(package) == head


def test_asking_leaves_the_index_alone(package):
    committed(package)
    (package / "__init__.py").touch()
    index = package.parents[1] / ".git" / "index"
    before = index.stat().st_mtime_ns
    assert not commit_of(package).endswith("dirty") and index.stat().st_mtime_ns == before


def test_a_wheel_says_what_it_was_built_from(package, monkeypatch):
    monkeypatch.setattr(module, "PACKAGE", package)
    try:
        module.commit.cache_clear()
        head = module.commit()
        assert head is not None and module.version_text() == f"{eyas.__version__} (commit {head})"
        (package / module.FILE_NAME).write_text("0123456789ab-dirty\n")
        module.commit.cache_clear()
        assert module.version_text() == f"{eyas.__version__} (commit 0123456789ab-dirty)"
        shutil.rmtree(package.parents[1] / ".git")
        (package / module.FILE_NAME).unlink()
        module.commit.cache_clear()
        assert module.version_text() == eyas.__version__
    finally:
        module.commit.cache_clear()


def test_the_command_names_the_commit():
    done = subprocess.run([sys.executable, "-m", "eyas", "--version"], capture_output=True, text=True, timeout=60)
    name = commit_of(Path(eyas.__file__).parent)
    assert (done.stdout, done.stderr) == (f"eyas {eyas.__version__}{f' (commit {name})' if name else ''}\n", "")
    if (ROOT / ".git").exists() and ROOT in Path(eyas.__file__).parents:
        assert name is not None and git(ROOT, "rev-parse", "HEAD").startswith(name.removesuffix("-dirty"))
