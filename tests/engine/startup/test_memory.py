"""Sizes against the tensors that an engine really makes, budgets that are kept, and refusals in one line."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.support.exactness import build, least_bytes, run

from eyas.base.errors import UserError
from eyas.base.types import Request, SamplingParams
from eyas.base.units import readable
from eyas.engine.startup import memory
from eyas.engine.startup.build import EngineOptions, _rough_lm_head, build_engine
from eyas.engine.startup.memory import (
    GPU_RESERVE,
    LEAST_SCREENED,
    SCREEN_ROOM,
    PageBytes,
    kv_budget,
    page_bytes,
    page_counts,
    screen_pays,
)
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.int8 import rough_bytes
from eyas.model.devices import available_bytes
from eyas.model.weights import tensors_of

CPU = torch.device("cpu")
SIZES = st.integers(1, 10_000)


def cost(size, pages):
    """Page 0 of both groups included."""
    return (pages.full + 1) * size.full + (pages.sliding + 1) * size.sliding


@given(
    full=SIZES,
    sliding=SIZES,
    budget=st.integers(0, 20_000_000),
    page_size=st.sampled_from((8, 16, 32)),
    context=st.integers(1, 4096),
    num_sequences=st.integers(1, 16),
    own=st.integers(1, 100),
    chunk_tokens=st.integers(1, 1000),
)
def test_pages_fit_the_budget_and_one_conversation_fits_the_pages(
    full, sliding, budget, page_size, context, num_sequences, own, chunk_tokens
):
    size = PageBytes(full=full, sliding=sliding)
    wanted = {
        "page_size": page_size,
        "context": context,
        "num_sequences": num_sequences,
        "sliding_pages": own,
        "chunk_tokens": chunk_tokens,
    }
    per_sequence = -(-context // page_size)
    try:
        pages = page_counts(size, budget=budget, **wanted)
    except UserError:
        least = page_counts(size, budget=1 << 60, **wanted | {"num_sequences": 1})
        assert cost(size, least) > budget
        return
    assert cost(size, pages) <= budget
    assert per_sequence <= pages.full <= per_sequence * num_sequences
    assert pages.sliding >= min(per_sequence, own + -(-chunk_tokens // page_size))
    assert page_counts(size, budget=cost(size, pages), **wanted) == pages
    assert page_counts(size, budget=2 * budget, **wanted).full >= pages.full


@pytest.mark.parametrize(("drafter", "kv_dtype"), [("none", "auto"), ("eagle3", "auto"), ("eagle3", "fp8")])
def test_page_bytes_are_those_of_the_tensors(random_model, drafter, kv_dtype):
    runner = build(random_model, drafter=drafter, concurrency=2, page_size=16, kv_dtype=kv_dtype).runner
    tensors = [part for cache in runner.caches for part in cache.tensors]
    assert {t.dtype for t in tensors} == {torch.uint8 if kv_dtype == "fp8" else torch.float32}
    if drafter == "eagle3":
        assert {t.dtype for t in runner.drafter.caches[0].tensors} == {torch.float32}
        tensors += [*runner.drafter.caches[0].tensors, runner.tap_pages_PC]
    size = page_bytes(random_model.config, runner.drafter.needs, 16, torch.float32, in_fp8=kv_dtype == "fp8")
    is_sliding = random_model.config.layer_is_sliding
    full_pages = next(c.k for c, s in zip(runner.caches, is_sliding, strict=True) if not s).shape[0]
    sliding_pages = runner.caches[0].k.shape[0]
    assert is_sliding[0]
    assert sum(t.nbytes for t in tensors) == full_pages * size.full + sliding_pages * size.sliding


def test_the_memory_map_names_every_owner_once(random_model):
    options = EngineOptions(context=256, concurrency=2, drafter="eagle3", draft_tokens=3, kv_bytes=1 << 26)
    built = build_engine(random_model.config, random_model.weights, options, head=random_model.head)
    owners = built.memory_bytes
    assert set(owners) == {"weights", "head", "kv", "state", "expert cache", "free"}
    assert owners["weights"] == sum(t.nbytes for t in tensors_of(random_model.weights))
    shared = {id(t) for t in tensors_of(random_model.weights)}
    assert id(random_model.head.weights.embed_VH) in shared
    assert owners["head"] == sum(t.nbytes for t in tensors_of(random_model.head.weights) if id(t) not in shared)
    config = random_model.config
    one_expert = 4 * 3 * config.hidden_size * config.intermediate_size
    assert owners["expert cache"] == config.num_layers * config.num_experts * one_expert
    assert 0 < owners["kv"] <= 1 << 26 and owners["state"] > 0 and owners["free"] > 0


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_a_gpu_has_free(monkeypatch, is_shared):
    """Where the host has the same memory, the driver does not count what the page cache would give back."""
    device = torch.device("cuda")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (5 << 20, 1 << 40))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(is_integrated=is_shared))
    free = available_bytes(device)
    assert free > 100 << 20 if is_shared else free == 5 << 20
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (1 << 40, 1 << 40))
    left = (1 << 40) - kv_budget(device, prompt_bytes=1 << 30, round_bytes=1 << 20)
    assert left == (1 << 30) + (1 << 20) + GPU_RESERVE + ((1 << 40) // 10 if is_shared else 0)


def test_a_screen_is_for_a_large_lm_head_and_a_tenth_of_what_is_left():
    lm_head, rough = 201_088 * 2_880 * 2, rough_bytes(201_088, 2_880)
    assert rough < 0.52 * lm_head
    assert screen_pays(lm_head, rough, SCREEN_ROOM * rough) and not screen_pays(lm_head, rough, SCREEN_ROOM * rough - 1)
    assert not screen_pays(LEAST_SCREENED - 1, 1, 1 << 40)


def test_a_rough_lm_head_is_made_where_it_pays(random_model, monkeypatch):
    monkeypatch.setattr(memory, "LEAST_SCREENED", 0)
    lm_head = random_model.weights.lm_head_VH.bfloat16()
    packed, num_bytes = (
        replace(random_model.weights, lm_head_VH=BlockedMatrix.pack(lm_head)),
        rough_bytes(*lm_head.shape),
    )
    assert _rough_lm_head(random_model.weights, 1 << 40) is None
    assert _rough_lm_head(packed, SCREEN_ROOM * num_bytes - 1) is None
    assert _rough_lm_head(packed, SCREEN_ROOM * num_bytes).nbytes == num_bytes + 8 * len(lm_head)
    monkeypatch.undo()
    assert _rough_lm_head(packed, 1 << 40) is None


def test_the_memory_map_has_a_screen(random_model):
    built = build_engine(random_model.config, random_model.weights, EngineOptions(context=256, kv_bytes=1 << 26))
    built.core.runner.screen = SimpleNamespace(nbytes=77)
    assert built.memory_bytes["screen"] == 77


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.00 GiB")],
)
def test_readable(num_bytes, text):
    assert readable(num_bytes) == text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": 513}, "longer than the model's 512"),
        ({"page_size": 24}, "page size must divide 128"),
        ({"drafter": "eagle3", "no_head": True}, "needs a head"),
        ({"kv_bytes": 1000}, "too little memory: one conversation of 256 tokens"),
    ],
)
def test_refusals(random_model, changes, message):
    head = None if changes.pop("no_head", False) else random_model.head
    options = replace(EngineOptions(context=256, kv_bytes=1 << 26), **changes)
    with pytest.raises(UserError, match=message):
        build_engine(random_model.config, random_model.weights, options, head=head)


def test_the_least_memory_still_answers_a_full_context(random_model):
    options = EngineOptions(context=128, concurrency=4, kv_bytes=1 << 26, drafter="ngram", draft_tokens=3, page_size=8)
    options = replace(options, kv_bytes=least_bytes(random_model, options))
    core = build_engine(random_model.config, random_model.weights, options).core
    params = SamplingParams(ignore_eos=True, seed=1)
    requests = [Request(request_id=str(i), prompt_ids=(i,) * 40, params=params) for i in range(3)]
    assert all(len(tokens) == 88 for tokens, _, _ in run(core, requests, check=True).values())
