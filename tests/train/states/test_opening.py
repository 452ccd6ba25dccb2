"""Targets from their files to states: memory is checked first, and sizes are those of the tensors."""

import pytest
import torch
from tests.train.support.batches import batch_of, random_documents

from eyas.base.errors import UserError
from eyas.base.units import readable
from eyas.model.checkpoints.fingerprint import fingerprint
from eyas.model.checkpoints.shards import read_headers
from eyas.model.making.make import make_target
from eyas.model.making.presets import PRESETS
from eyas.model.weights import tensors_of
from eyas.train.states import opening
from eyas.train.states.memory import TargetMemory, at_once, check_memory, longest_that_fits
from eyas.train.states.opening import find_target, open_target

TINY = PRESETS["tiny"]
TAPS = (2, 4, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_target(TINY, tmp_path_factory.mktemp("opening") / "target", seed=1)


def test_the_demo_model_teaches():
    told = []
    source = open_target(find_target("demo", device="cpu"), taps=TAPS, longest=64, progress=lambda *at: told.append(at))
    batch = batch_of(random_documents(source.config.vocab_size, (10, 20)))
    states = source.states(batch)
    assert states.taps_TC.shape == (30, 3 * 256) and states.last_TH.shape == (30, 256) and states.best_T is None
    assert (states.last_TH @ source.teacher.lm_head_VH.T).shape == (30, source.config.vocab_size)
    assert source.teacher.embed_VH.dtype == torch.float32
    assert told[-1][0] == told[-1][1] > 0


def test_sizes_are_those_of_the_tensors(folder):
    found = find_target(str(folder), device="cpu")
    owners = found.memory(num_taps=3).owners(longest=700, batch_tokens=1000, cache_bytes=5)
    source = open_target(found, taps=TAPS, longest=700, batch_tokens=1000)
    dense = [tensor for tensor in tensors_of(source._target.weights) if tensor.dtype != torch.uint8]
    assert owners["target caches"] == sum(cache.k.nbytes + cache.v.nbytes for cache in source._kept.layers)
    assert owners["target weights"] == sum(tensor.nbytes for tensor in dense)
    states = source.states(batch_of(random_documents(TINY.vocab_size, (700, 300))))
    assert owners["states"] == states.taps_TC.nbytes + states.last_TH.nbytes
    assert owners["target experts"] >= source._target.expert_cache.used_bytes > 0
    assert owners["teacher"] == 0 and owners["states cache"] == 5


def test_a_gpu_keeps_a_plain_lm_head_and_larger_chunks():
    of_gpu, of_cpu = (
        TargetMemory(
            config=PRESETS["gpt-oss-20b"],
            dtype=torch.bfloat16,
            has_kernels=has_kernels,
            weight_bytes=13 << 30,
            expert_cache_bytes=0,
            num_taps=3,
        ).owners(longest=131072)
        for has_kernels in (True, False)
    )
    assert of_gpu["target scores"] == 0 and of_cpu["target scores"] == 6 * 4 * 64 * 64 * 131072
    assert of_gpu["teacher"] == 201088 * 2880 * 2 and of_cpu["teacher"] == 0
    assert of_gpu["target chunk"] == of_cpu["target chunk"] * 8192 // 768
    # 12 full layers of 131,072 tokens; sliding ones keep a window and a chunk
    per_token = 2 * 8 * 64 * 2
    assert of_cpu["target caches"] == 12 * per_token * (131072 + 16 + 768 + 128 + 16)
    assert of_gpu["states"] == 131072 * 4 * 2880 * 2


def test_too_little_memory_names_the_context_that_fits(folder, monkeypatch):
    found = find_target(str(folder), device="cpu")
    room = sum(found.memory(num_taps=3).owners(longest=5000).values()) + 4096
    monkeypatch.setattr(opening, "available_bytes", lambda device: room)
    monkeypatch.setattr(opening, "load_target", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(UserError) as caught:
        open_target(found, taps=TAPS, longest=9000)
    message, memory = str(caught.value), found.memory(num_taps=3)
    fits = int(message.split("up to ")[1].split()[0])

    def needed(length):
        return sum(memory.owners(longest=length).values())

    assert needed(fits) <= room < needed(fits + 1)
    assert message.startswith(f"too little memory: documents of 9000 tokens need {readable(needed(9000))} (")
    assert f"{readable(room)} are free" in message
    monkeypatch.setattr(opening, "available_bytes", lambda device: 1000)
    with pytest.raises(UserError, match="not even the shortest documents fit"):
        open_target(found, taps=TAPS, longest=9000)


def test_what_fits_is_found():
    assert longest_that_fits(lambda length: 10 * length, free=99, at_most=50) == 9
    assert longest_that_fits(lambda length: 10 * length, free=1000, at_most=50) == 50
    assert longest_that_fits(lambda length: 10 + length, free=9, at_most=50) == 0
    check_memory(lambda length: {"a": length, "b": 1}, longest=9, device=torch.device("cpu"), free=10)
    with pytest.raises(UserError, match="8 tokens fit"):
        check_memory(lambda length: {"a": length, "b": 1}, longest=9, device=torch.device("cpu"), free=9)


def test_a_fingerprint_is_that_of_the_contents(folder, tmp_path):
    same, other = (make_target(TINY, tmp_path / str(seed), seed=seed) for seed in (1, 2))
    of = {path: fingerprint(path, read_headers(path)) for path in (folder, same, other)}
    assert of[folder] == of[same] != of[other] and len(of[other]) == 32
    assert find_target(str(folder), device="cpu").fingerprint == of[folder]


@pytest.mark.parametrize(("model", "said"), [("nowhere", "neither a folder nor a hub id"), ("/", "config.json")])
def test_no_model(model, said):
    with pytest.raises(UserError, match=said):
        find_target(model, device="cpu")


@pytest.mark.parametrize(("device", "of_pass"), [("cpu", 2 + 4), ("cuda", 1 + 2 + 4)])
def test_the_pass_of_the_target_and_the_step_of_the_head_take_turns(device, of_pass):
    owners = {"target caches": 1, "target chunk": 2, "target scores": 4, "states": 8}
    step = {"head and optimiser": 16, "head pass": 32, "loss tiles": 64}
    assert at_once(owners, torch.device(device)) == 15
    assert at_once(owners | step, torch.device(device)) == 127 - of_pass
    assert at_once(owners | {"head pass": 3}, torch.device(device)) == 15
