"""The page cache of a checkpoint is given back while it loads: measured with mincore, on real files."""

import ctypes
import mmap
import subprocess
import time

import msgspec
import pytest
import yaml
from msgspec.structs import replace
from tests.fleet.support.box_plans import small_plan
from tests.fleet.support.lab import BOX, wait_until, write_plan

from eyas.fleet.machines.node import LocalNode
from eyas.fleet.running.page_cache import FLOOR_BYTES, give_back, places
from eyas.recipes.plan import Download, Home, Plan
from eyas.recipes.planning.planner import Ask, make_plan

PAGE = mmap.PAGESIZE
SIZE = 64 * PAGE
ALWAYS = 1 << 60


def resident(path):
    """The pages of a file that are in memory, as the kernel says (mincore)."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = (ctypes.c_ubyte * (len(mapped) // PAGE))()
        view = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(mapped)), pages)
        del view
        assert not failed
        return sum(page & 1 for page in pages)


def cached(path):
    """A file all of whose pages are on the disk and in the cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"w" * SIZE)
    subprocess.run(["sync", path], check=True)
    assert path.read_bytes() and resident(path) == SIZE // PAGE
    return path


@pytest.fixture
def hub(tmp_path):
    """A cache folder on a file system whose pages can be given back."""
    probe = cached(tmp_path / "probe")
    subprocess.run(["dd", f"if={probe}", "iflag=nocache", "count=0"], check=True, capture_output=True)
    if resident(probe):
        pytest.skip("pages of this file system stay in memory (tmpfs), or dd has no nocache")
    return tmp_path / "it's a $cache"


def plan(hub, **changes):
    repos = (Download(repo="org/model", num_bytes=1), Download(repo="org/head", num_bytes=1))
    return small_plan(downloads=repos, cache=str(hub), **changes)


def run(script):
    result = LocalNode().run(script)
    assert (result.code, result.out, result.err) == (0, "", "")


def test_only_the_checkpoint_is_given_back(hub):
    ours = [cached(hub / "hub" / f"models--org--{name}" / "blobs" / "a b") for name in ("model", "head")]
    others = [cached(hub / "hub" / place) for place in ("models--org--other/blobs/c", "models--org--model/refs/d", "e")]
    run(give_back(plan(hub), floor_bytes=ALWAYS))
    assert [resident(path) for path in ours] == [0, 0]
    assert [resident(path) for path in others] == [SIZE // PAGE] * 3
    assert all(path.read_bytes() == b"w" * SIZE for path in ours)


def test_folders_and_files_of_ones_own(hub):
    model, head = cached(hub / "model" / "x.safetensors"), cached(hub / "head.gguf")
    other = cached(hub / "model-2")
    run(give_back(small_plan(model_path=str(model.parent), head_path=str(head)), floor_bytes=ALWAYS))
    assert (resident(model), resident(head), resident(other)) == (0, 0, SIZE // PAGE)


def test_the_cache_stays_where_there_is_room(hub):
    path = cached(hub / "hub" / "models--org--model" / "blobs" / "a")
    run(give_back(plan(hub), floor_bytes=0))
    assert resident(path) == SIZE // PAGE


def test_what_a_process_has_mapped_stays(hub):
    path = cached(hub / "hub" / "models--org--model" / "blobs" / "a")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[at] for at in range(0, SIZE, PAGE))  # all pages are in its tables
        run(give_back(plan(hub), floor_bytes=ALWAYS))
        assert resident(path) == SIZE // PAGE


def test_what_is_not_there_or_not_readable_is_left_out(hub):
    run(give_back(plan(hub / "nowhere"), floor_bytes=ALWAYS))


def test_only_where_memory_is_unified():
    downloads = (Download(repo="org/model", num_bytes=1),)
    for box in ("h100", "cpu"):
        assert give_back(small_plan(box=box, downloads=downloads)) is None
    assert give_back(small_plan()) is None  # nothing is known to be read
    script = give_back(small_plan(downloads=downloads, reserved=3 << 30))
    assert f"\ngive_back {(FLOOR_BYTES + (3 << 30)) >> 10} " in script


def test_the_places_of_real_plans():
    def of(model, engine):
        return list(places(make_plan(Ask(model=model, on="spark", engine=engine))))

    hub = ".cache/huggingface/hub/models--"
    assert of("gpt-oss-120b", "vllm") == [Home(path=f"{hub}openai--gpt-oss-120b/blobs")]
    assert of("gpt-oss-120b", "llama.cpp") == [Home(path=f"{hub}ggml-org--gpt-oss-120b-GGUF/blobs")]
    assert of("demo", "llama.cpp") == [Home(path=".local/share/eyas/demo-llama-cpp/gguf")]
    assert of("gpt-oss-20b", "ollama") == []


def test_a_supervisor_gives_back_from_launch_to_ready(lab, hub):
    """The first read is that of the engine; once it is ready the cache is the system's again."""
    weights, green = cached(hub / "weights" / "x"), lab.tmp / "green"
    lab.limit(cache_s=0.05)
    path = lab.plan("--green-file", green)
    written = msgspec.convert(yaml.safe_load(path.read_text()), Plan)
    unified = replace(BOX, hardware=replace(BOX.hardware, unified=True, os_reserve_bytes=1))
    memory = replace(written.memory, reserved=ALWAYS)
    choice = replace(written.choice, model_path=str(weights.parent))
    write_plan(path, replace(written, box=unified, memory=memory, choice=choice))
    lab.up(path, "--detach")
    wait_until(lambda: resident(weights) == 0)
    weights.read_bytes()
    wait_until(lambda: resident(weights) == 0)
    green.touch()
    wait_until(lambda: lab.row().status == "ready")
    time.sleep(1.0)  # what was under way
    weights.read_bytes()
    time.sleep(0.5)
    assert resident(weights) == SIZE // PAGE
    lab.down()
