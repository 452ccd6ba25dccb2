"""The KV layout of our own engine, against the pages that the engine itself counts."""

import math
from dataclasses import fields

import pytest
import torch
from tests.recipes.support.numbers import setup

from eyas.engine.drafters.base import DrafterNeeds
from eyas.engine.drafters.eagle3 import Eagle3Drafter
from eyas.engine.startup.backend import KERNEL_CHUNK, PLAIN_CHUNK
from eyas.engine.startup.build import EngineOptions, _most_rows
from eyas.engine.startup.memory import page_bytes, page_counts
from eyas.engine.step.scheduler import sliding_pages
from eyas.kernels.cuda.moe.moe import MAX_ROWS
from eyas.model.config import Eagle3Config, GptOssConfig, RopeConfig
from eyas.recipes.estimate.kv import EYAS_CHUNK, EYAS_CPU_CHUNK, EYAS_PAGE, kv_layout, round_rows

LAYERS = 36
TARGET = GptOssConfig(
    vocab_size=201_088,
    hidden_size=2880,
    intermediate_size=2880,
    num_layers=LAYERS,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    num_experts=128,
    experts_per_token=4,
    sliding_window=128,
    layer_is_sliding=(True, False) * (LAYERS // 2),
    rope=RopeConfig(theta=150_000),
    max_context=131_072,
)
HEAD = Eagle3Config(
    vocab_size=201_088,
    draft_vocab_size=32_000,
    hidden_size=2880,
    target_hidden_size=2880,
    intermediate_size=17_280,
    num_heads=64,
    num_kv_heads=8,
    head_dim=64,
    taps=(1, 17, 33),
    rope=RopeConfig(theta=10_000),
    max_context=131_072,
)


def options_of(drafts, **options):
    return EngineOptions(context=8192, drafter="eagle3" if drafts else "none", draft_tokens=drafts, **options)


def setup_of(drafts, **choice):
    """As planned: with `auto` the number of drafts is the one that is expected to be the fastest."""
    head, is_auto = "specdrift-120b" if drafts else None, drafts == "auto"
    return setup("h200", "eyas", head=head, drafts=1 if is_auto else drafts, are_drafts_fixed=not is_auto, **choice)


@pytest.mark.parametrize(("context", "sequences"), [(4096, 1), (32_768, 8), (131_072, 2)])
@pytest.mark.parametrize("drafts", [0, 3, "auto"])
@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
def test_bytes_are_the_engines_own(context, sequences, drafts, kv_dtype):
    page = {field.name: field.default for field in fields(EngineOptions)}["page_size"]
    assert (page, KERNEL_CHUNK, PLAIN_CHUNK) == (EYAS_PAGE, EYAS_CHUNK, EYAS_CPU_CHUNK)
    needs = Eagle3Drafter.needs_of(HEAD, torch.bfloat16) if drafts else DrafterNeeds()
    size = page_bytes(TARGET, needs, page, torch.bfloat16, in_fp8=kv_dtype == "fp8")
    pages = page_counts(
        size,
        budget=1 << 60,
        page_size=page,
        context=context,
        num_sequences=sequences,
        sliding_pages=sliding_pages(128, options_of(drafts).max_drafts, page),
        chunk_tokens=KERNEL_CHUNK,
    )
    of_engine = pages.full * size.full + pages.sliding * size.sliding
    layout = kv_layout(*setup_of(drafts, context=context, concurrency=sequences, kv_dtype=kv_dtype))
    tokens = context * sequences
    assert math.isclose(layout.target_bytes(tokens, sequences) + layout.head_bytes(tokens), of_engine, rel_tol=0.03)


@pytest.mark.parametrize("drafts", [0, 3, 15, "auto"])
@pytest.mark.parametrize("concurrency", [1, 3, 64, 300, 512])
def test_rows_of_the_largest_round_are_the_engines_own(concurrency, drafts):
    """A plan that counts fewer promises tokens for which the engine has no room."""
    choice, box, *_ = setup_of(drafts, concurrency=concurrency)
    assert round_rows(choice, box) == _most_rows(options_of(drafts, concurrency=concurrency), MAX_ROWS)


@pytest.mark.parametrize(("has_head", "least"), [(True, 1.8), (False, 1.95)])
def test_fp8_holds_nearly_twice_the_tokens(has_head, least):
    """Conversations of 32,768 tokens in 40 GB; a head's keys, values and taps stay in 16 bits."""
    needs = Eagle3Drafter.needs_of(HEAD, torch.bfloat16) if has_head else DrafterNeeds()

    def tokens(in_fp8):
        size = page_bytes(TARGET, needs, EYAS_PAGE, torch.bfloat16, in_fp8=in_fp8)
        sliding = sliding_pages(128, 3, EYAS_PAGE)
        sizes = {"page_size": EYAS_PAGE, "context": 32_768, "num_sequences": 512, "chunk_tokens": KERNEL_CHUNK}
        return page_counts(size, budget=40 * 10**9, sliding_pages=sliding, **sizes).full

    assert tokens(True) / tokens(False) >= least
