"""Compiled code is kept on disk, and kept only while it is what the source says."""

import builtins
import functools
import os
import stat
from importlib import metadata
from pathlib import Path

import pytest

from eyas.kernels.cuda import compiler

SOURCE = 'extern "C" __global__ void fill(float* out, int n) { if (threadIdx.x < n) out[threadIdx.x] = VALUE; }'


@pytest.fixture
def compile_for(folder):
    return functools.partial(compiler.compile_for, folder=folder)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of sources with fill.cu, and an empty cache."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="no cuda-bindings: CUDA kernels cannot be compiled")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "FOLDER", tmp_path)
    (tmp_path / "fill.cu").write_text(SOURCE)
    return tmp_path


def _count_builds(monkeypatch) -> list[str]:
    built, build = [], compiler.build

    def counted(source, defines, arch, folder):
        built.append(source)
        return build(source, defines, arch, folder=folder)

    monkeypatch.setattr(compiler, "build", counted)
    return built


def test_the_second_time_comes_from_disk(compile_for, monkeypatch):
    built = _count_builds(monkeypatch)
    first = compile_for("fill", {"VALUE": 1})
    assert first.startswith(b"\x7fELF")
    assert compile_for("fill", {"VALUE": 1}) == first
    assert built == ["fill"]
    assert [path.suffix for path in compiler.cache_folder().iterdir()] == [".cubin"]


def test_another_source_define_or_gpu_is_another_build(compile_for, folder, monkeypatch):
    built = _count_builds(monkeypatch)
    compile_for("fill", {"VALUE": 1})
    compile_for("fill", {"VALUE": 2})
    compile_for("fill", {"VALUE": 1}, "sm_121")
    (folder / "common.cuh").write_text("// not even included")
    compile_for("fill", {"VALUE": 1})
    (folder / "fill.cu").write_text(SOURCE + "\n")
    compile_for("fill", {"VALUE": 1})
    assert len(built) == 5


@pytest.mark.parametrize("change", [("_options", {"ftz": True}), ("_versions", ("13.0", "13.0.1"))], ids=lambda c: c[0])
def test_another_option_or_compiler_is_another_build(compile_for, monkeypatch, change):
    built, (name, value) = _count_builds(monkeypatch), change
    original = getattr(compiler, name)
    compile_for("fill", {"VALUE": 1})
    changed = (lambda *args: original(*args) | value) if isinstance(value, dict) else lambda: value
    monkeypatch.setattr(compiler, name, changed)
    compile_for("fill", {"VALUE": 1})
    compile_for("fill", {"VALUE": 1})
    assert len(built) == 2


def test_the_key_has_the_patch_release_of_nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc")
    assert metadata.version("nvidia-cuda-nvrtc") in compiler._versions()


def test_other_users_can_read_an_entry(compile_for):
    before = os.umask(0o022)
    try:
        compile_for("fill", {"VALUE": 1})
    finally:
        os.umask(before)
    (entry,) = compiler.cache_folder().iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o644


def test_an_entry_that_cannot_be_put_in_its_place_leaves_nothing(compile_for, monkeypatch):
    def fail(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        assert compile_for("fill", {"VALUE": 1}).startswith(b"\x7fELF")
    assert not list(compiler.cache_folder().iterdir())


@pytest.mark.parametrize("content", [b"", b"short", bytes(500)])
def test_a_damaged_entry_is_compiled_again(compile_for, monkeypatch, content):
    built = _count_builds(monkeypatch)
    first = compile_for("fill", {"VALUE": 1})
    (entry,) = compiler.cache_folder().iterdir()
    entry.write_bytes(content)
    assert compile_for("fill", {"VALUE": 1}) == first
    assert compile_for("fill", {"VALUE": 1}) == first
    assert len(built) == 2


def test_without_a_cache_folder_it_compiles_each_time(compile_for, folder, monkeypatch):
    built = _count_builds(monkeypatch)
    (folder / "cache").write_text("a file where the folder would be")
    assert compile_for("fill", {"VALUE": 1}) == compile_for("fill", {"VALUE": 1})
    assert len(built) == 2


def test_without_a_home_it_compiles_each_time(compile_for, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    built = _count_builds(monkeypatch)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert compiler.cache_folder() is None
    assert compile_for("fill", {"VALUE": 1}) == compile_for("fill", {"VALUE": 1})
    assert len(built) == 2


def test_what_kernels_use(folder):
    usage = compiler.build("fill", {"VALUE": 1}, "sm_90", folder=folder).usage["fill"]
    assert 0 < usage.registers < 32
    assert usage[1:] == (0, 0, 0)


def test_an_error_names_the_line(compile_for):
    with pytest.raises(Exception, match=r'fill\.cu\(1\): error: identifier "VALUE" is undefined'):
        compile_for("fill", {})


def test_it_says_what_to_install(monkeypatch):
    original = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("cuda"):
            raise ImportError(f"No module named {name!r}")
        return original(name, *args, **kwargs)

    compiler._versions.cache_clear()
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(RuntimeError, match=r"pip install 'eyas\[gpu\]'"):
        compiler.compile_for("dense/linear")


def test_an_older_device_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (8, 9))
    with pytest.raises(RuntimeError, match=r"9\.0 \(Hopper\) or newer, not 8\.9"):
        compiler.load("norm")
