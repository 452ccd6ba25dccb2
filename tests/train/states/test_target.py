"""States of the target against transformers, against the engine that serves, and against themselves cut otherwise."""

import weakref
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.support.batches import batch_of, random_documents

from eyas.base.errors import UserError
from eyas.base.types import Request, SamplingParams
from eyas.engine.startup.build import EngineOptions, build_engine
from eyas.kernels.reference.layers.ops import LayerCache
from eyas.kernels.reference.layers.roles import PROMPT_OPS
from eyas.model.checkpoints.loader import load_head, load_target
from eyas.model.config import FINAL_NORM_TAP
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import PRESETS, default_head
from eyas.train.states import target
from eyas.train.states.target import TargetStates
from eyas.train.types import States, Teacher

CPU = torch.device("cpu")
TINY = PRESETS["tiny"]
TAPS = (2, 4, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_target(TINY, tmp_path_factory.mktemp("states") / "target", seed=1)


@pytest.fixture(scope="module")
def loaded(folder):
    return load_target(folder, device=CPU, dtype=torch.float32)


def states_of(loaded, *, taps=TAPS, longest=300, **options):
    config, weights = loaded
    teacher = Teacher(weights.embed_VH, weights.lm_head_VH)
    options = {"expert_cache_bytes": 1 << 28, "fingerprint": "tiny"} | options
    return TargetStates(config, weights, teacher, taps=taps, longest=longest, **options)


def same(one, other):
    return torch.equal(one.taps_TC, other.taps_TC) and torch.equal(one.last_TH, other.last_TH)


def relative_error(ours, theirs):
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def test_they_are_those_of_transformers(folder, loaded):
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=transformers.Mxfp4Config(dequantize=True), attn_implementation="eager"
    ).float()
    documents = random_documents(TINY.vocab_size, (100, 1, 65, 130))
    states, at = states_of(loaded, taps=(0, *TAPS)).states(batch_of(documents)), 0
    for document in documents:
        with torch.inference_mode():
            hidden = oracle(torch.tensor([document]), output_hidden_states=True).hidden_states
        here = slice(at, at + len(document))
        theirs = torch.cat([hidden[tap][0] for tap in (0, *TAPS)], dim=-1)
        assert relative_error(states.taps_TC[here], theirs) <= 1e-4
        assert relative_error(states.last_TH[here], hidden[-1][0]) <= 1e-4
        at += len(document)
    assert at == len(states.last_TH)


@pytest.mark.parametrize("changes", [{}, {"taps": (FINAL_NORM_TAP,), "has_fc": False}], ids=["taps", "final norm"])
def test_they_are_those_of_the_engine_bit_for_bit(loaded, tmp_path, changes):
    """The engine reads each prompt alone, in chunks of another size, over pages of another size."""
    config, weights = loaded
    make_head(default_head(config, **changes), tmp_path / "head", target=config)
    head = load_head(tmp_path / "head", config, weights, device=CPU, dtype=torch.float32)
    options = EngineOptions(
        context=320, concurrency=1, kv_bytes=1 << 24, drafter="eagle3", draft_tokens=1, page_size=32, chunk_tokens=90
    )
    core = build_engine(config, weights, options, head=head).core
    served_by, found = core.runner.target, []
    forward = served_by.forward

    def recording(batch, caches):
        output = forward(batch, caches)
        found.append(output.taps_TC[batch.live_SR.flatten()])
        return output

    served_by.forward = recording
    documents = random_documents(TINY.vocab_size, (200, 64, 7, 129, 30))
    for document in documents:
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        core.add(Request(request_id="r", prompt_ids=tuple(document), params=params), lambda event: None)
        while not core.is_idle:
            core.step()
    served = torch.cat(found)
    states = states_of(loaded, taps=head.config.taps).states(batch_of(documents))
    assert torch.equal(states.taps_TC, served)
    if changes:
        assert torch.equal(states.last_TH, served)


@settings(max_examples=6)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=6),
    chunk_rows=st.sampled_from((64, 128, 512)),
    seed=st.integers(0, 9),
)
def test_packed_or_alone_in_chunks_of_any_size(loaded, lengths, chunk_rows, seed):
    documents = random_documents(TINY.vocab_size, lengths, seed)
    together = states_of(loaded, chunk_rows=chunk_rows).states(batch_of(documents))
    alone = states_of(loaded, chunk_rows=256)
    for document, *parts in zip(documents, *(x.split(lengths) for x in together[:2]), strict=True):
        assert same(States(*parts), alone.states(batch_of([document])))


def test_a_long_document_goes_round_a_ring_of_sliding_pages(loaded):
    documents = random_documents(TINY.vocab_size, (900, 40))
    short, long = (states_of(loaded, longest=900, chunk_rows=rows) for rows in (64, 960))
    pages = [[cache.k.shape[0] for cache in states._kept.layers] for states in (short, long)]
    assert pages == [[1 + 5, 1 + 60] * 4, [1 + 60, 1 + 60] * 4]
    assert same(*(states.states(batch_of(documents)) for states in (short, long)))


def test_operations_that_take_one_sequence_get_whole_tiles_of_one(loaded, monkeypatch):
    """As those of a GPU do. Here the plain ones stand in for them, so the values are the same."""
    monkeypatch.setattr(target, "is_packed", lambda weights: True)
    monkeypatch.setattr(target, "_kernel_ops", lambda *_: PROMPT_OPS)
    alone, shapes = states_of(loaded, chunk_rows=128), []
    forward = alone._target.forward
    alone._target.forward = lambda batch, caches: shapes.append(batch.tokens_SR.shape) or forward(batch, caches)
    monkeypatch.undo()
    batch = batch_of(random_documents(TINY.vocab_size, (70, 150, 3)))
    assert same(alone.states(batch), states_of(loaded).states(batch))
    assert shapes == [(1, 128), (1, 64), (1, 128), (1, 64)]


def test_stale_pages_change_nothing(loaded):
    """Also those that hold NaN, as keys of a state that is not finite are."""
    documents = random_documents(TINY.vocab_size, (70, 150, 3))
    fresh, used = states_of(loaded), states_of(loaded)
    for cache in used._kept.layers:
        assert isinstance(cache, LayerCache)
        cache.k.fill_(float("nan")), cache.v.fill_(1e30)
    assert same(fresh.states(batch_of(documents)), used.states(batch_of(documents)))


def test_a_document_sees_no_other(loaded):
    documents = random_documents(TINY.vocab_size, (50, 60, 70))
    states = states_of(loaded)
    before = states.states(batch_of(documents))
    after = states.states(batch_of([documents[0], [7] * 60, documents[2]]))
    unchanged = (before.last_TH == after.last_TH).all(1)
    assert unchanged.tolist() == [True] * 50 + [False] * 60 + [True] * 70


def test_rows_behind_the_end_of_a_document_pick_no_expert(loaded):
    states, live = states_of(loaded), []
    forward = states._target.forward
    states._target.forward = lambda batch, caches: live.append(int(batch.live_SR.sum())) or forward(batch, caches)
    states.states(batch_of(random_documents(TINY.vocab_size, (70, 150, 3, 290))))
    assert sum(live) == 70 + 150 + 3 + 290 and len(live) == 2


def test_each_expert_is_dequantised_once(loaded, monkeypatch):
    from eyas.model.networks import experts

    seen, dequantize = [], experts.dequantize
    monkeypatch.setattr(experts, "dequantize", lambda packed, dtype: seen.append(packed) or dequantize(packed, dtype))
    states, documents = states_of(loaded), random_documents(TINY.vocab_size, (200, 200, 100))
    for _ in range(2):
        states.states(batch_of(documents))
    assert len(seen) == 2 * TINY.num_experts * TINY.num_layers


def test_they_can_take_part_in_a_graph(loaded):
    states = states_of(loaded).states(batch_of(random_documents(TINY.vocab_size, (9,))))
    weight = torch.ones(TINY.hidden_size, requires_grad=True)
    (states.last_TH * weight).sum().backward()
    assert torch.equal(weight.grad, states.last_TH.sum(0))


def test_a_document_without_room_is_named(loaded):
    batch = batch_of(random_documents(TINY.vocab_size, (9, 65)))
    with pytest.raises(UserError) as caught:
        states_of(loaded, longest=64).states(batch)
    assert str(caught.value) == "chats.jsonl:2, turn 1: 65 tokens, but the target has room for 64"


def test_dense_experts_and_another_window(tmp_path):
    """Two chunks that see nothing before them: a window of one token."""
    config = replace(TINY, expert_format="dense", sliding_window=1)
    loaded = load_target(make_target(config, tmp_path / "dense", seed=1), device=CPU, dtype=torch.float32)
    documents = random_documents(TINY.vocab_size, (130, 20))
    assert same(*(states_of(loaded, chunk_rows=rows).states(batch_of(documents)) for rows in (64, 512)))


def test_caches_of_a_call_change_no_bit_and_are_gone_after_it(loaded, monkeypatch):
    batch = batch_of(random_documents(TINY.vocab_size, (200, 7, 64)))
    made = []
    zeros = LayerCache.zeros

    def counted(*args, **options):
        cache = zeros(*args, **options)
        made.append(weakref.ref(cache.k))
        return cache

    monkeypatch.setattr(LayerCache, "zeros", counted)
    expected = states_of(loaded, longest=3000, chunk_rows=64).states(batch)
    made.clear()
    released = states_of(loaded, longest=3000, chunk_rows=64, keeps_caches=False)
    assert not made
    assert same(released.states(batch), expected)
    assert len(made) == TINY.num_layers and not any(cache() is not None for cache in made)
    short = batch_of(random_documents(TINY.vocab_size, (30,)))  # in smaller caches than before
    assert same(released.states(short), states_of(loaded, longest=3000).states(short))
