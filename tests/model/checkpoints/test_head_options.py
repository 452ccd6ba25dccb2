"""Heads made smaller when loaded: which tokens stay, and that everything else stays as it was."""

import json

import pytest
import torch

from eyas.base.errors import UserError
from eyas.model.checkpoints.eagle3 import in_fp8, keep_tokens
from eyas.model.checkpoints.head_options import draft_vocabulary, read_counts
from eyas.model.checkpoints.loader import load_head, load_target
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import PRESETS, head_of_kind
from eyas.model.weights import tensors_of

TINY = PRESETS["tiny"]
ROUNDED = ("o_HN", "gate_up_IH", "down_HI", "lm_head_VH")


def _made(kind, folder):
    config, style = head_of_kind(kind, TINY)
    return make_head(config, folder, target=TINY, style=style, seed=2)


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    """By the name of its kind: a head with a draft vocabulary of its own, and one with the target's."""
    folder, fp32 = tmp_path_factory.mktemp("heads"), {"device": torch.device("cpu"), "dtype": torch.float32}
    config, weights = load_target(make_target(TINY, folder / "target"), **fp32)
    return {
        kind: load_head(_made(kind, folder / kind), config, weights, **fp32) for kind in ("specforge", "full-vocab")
    }


def test_draft_vocabulary_keeps_the_frequent_and_the_necessary():
    counts = torch.tensor([5, 0, 7, 7, 1, 9, 0, 2])
    assert draft_vocabulary(counts, 4).tolist() == [0, 2, 3, 5]
    assert draft_vocabulary(counts, 4, (1, 7)).tolist() == [1, 2, 5, 7]
    assert counts.tolist() == [5, 0, 7, 7, 1, 9, 0, 2]


@pytest.mark.parametrize("kind", ["specforge", "full-vocab"])
def test_kept_tokens_keep_their_rows(heads, kind):
    weights = heads[kind].weights
    known = torch.arange(512) if weights.target_ids_V is None else weights.target_ids_V
    rows = dict(zip(known.tolist(), weights.lm_head_VH, strict=True))
    counts = torch.zeros(512).scatter_(0, known.flip(0)[::2], torch.arange(1.0, len(known) // 2 + 1))
    for counts_V, expected in ((None, known[:63]), (counts, known.flip(0)[::2][-63:])):
        last = known[-2].item()
        small = keep_tokens(heads[kind], 64, counts_V=counts_V, always={last})
        kept = small.weights
        ids = kept.target_ids_V.tolist()
        assert small.config.draft_vocab_size == len(ids) == 64 and ids == sorted({*expected.tolist(), last})
        assert all(torch.equal(row, rows[token]) for token, row in zip(ids, kept.lm_head_VH, strict=True))
        assert kept.qkv_NH is weights.qkv_NH


def test_8_bits_round_the_matrices_behind_attention(heads):
    weights, rounded = heads["full-vocab"].weights, in_fp8(heads["full-vocab"]).weights
    for name in ROUNDED:
        matrix, ours = getattr(weights, name), getattr(rounded, name)
        assert 0 < (ours - matrix).abs().max() <= matrix.abs().max() / 16
    same = [tensor for tensor in tensors_of(rounded) if any(tensor is other for other in tensors_of(weights))]
    assert len(same) == len(list(tensors_of(weights))) - len(ROUNDED)


@pytest.mark.parametrize(
    ("size", "always", "words"), [(40, {1}, "multiple of 16"), (4096, {1}, "at most"), (16, range(17), "no room")]
)
def test_impossible_vocabularies(heads, size, always, words):
    with pytest.raises(UserError, match=words):
        keep_tokens(heads["full-vocab"], size, counts_V=None, always=always)


def test_counts_come_from_json(tmp_path):
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"3": 5, "0": 1.5}))
    assert read_counts(path, 4).tolist() == [1.5, 0, 0, 5]
    for text in ("[1]", '{"4": 1}', '{"-1": 1}', '{"a": 1}', '{"1": null}', "{"):
        path.write_text(text)
        with pytest.raises(UserError, match="token counts"):
            read_counts(path, 4)
