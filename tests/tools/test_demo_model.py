"""The trainable target of the demo against the model that serves it, through the exported files."""

from pathlib import Path

import pytest
import torch
from decode import generate, generate_all
from export import check_sizes, export_target
from optim import Clock, cosine, orthogonalize
from reload import load_trainable
from shapes import SMOKE_TARGET, TARGET
from states import BatchedStates
from target import TargetModel, attend, hidden_states, masks_of, rms_norm

from eyas.kernels.reference.layers.roles import PROMPT_OPS
from eyas.model.batch import PageTables, RowBatch
from eyas.model.checkpoints.loader import load_target
from eyas.model.networks.gpt_oss import GptOss
from eyas.train.data.packing import batches_in_order
from eyas.train.states.opening import find_target, open_target
from eyas.train.types import Document, Teacher

torch.set_num_threads(1)
CPU = torch.device("cpu")
TOKENIZER = Path(__file__).parents[2] / "src" / "eyas" / "demo" / "tokenizer.json"


def random_model(config, seed=0):
    """Every parameter away from its starting value, biases and sinks included, rounded as training ends."""
    generator = torch.Generator().manual_seed(seed)
    model = TargetModel(config, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    model.bf16_rounded()
    return model


@torch.no_grad()
def logits_of(model, weights, ids, docs=None):
    docs = torch.zeros_like(ids) if docs is None else docs
    states, _ = hidden_states(weights, model.config, ids, docs, model.rope(ids.shape[1], CPU))
    return rms_norm(states[-1], weights.norm_H, model.config.rms_norm_eps) @ weights.lm_head_VH.T


def test_exported_target_computes_what_was_trained(tmp_path):
    """Logits of the serving model over the file, longer than the window, and of the file read back for training."""
    model = random_model(SMOKE_TARGET)
    with torch.no_grad():
        weights = model.weights(dtype=torch.float32, quantized=True)
    export_target(model, tmp_path, TOKENIZER)
    ids = torch.randint(0, SMOKE_TARGET.vocab_size, (1, 200), generator=torch.Generator().manual_seed(1))
    expected = logits_of(model, weights, ids)

    config, loaded = load_target(tmp_path, device=CPU, dtype=torch.float32)[:2]
    assert config == SMOKE_TARGET
    serving = GptOss(config, loaded, max_positions=200, expert_cache_bytes=1 << 30)
    table = torch.arange(1, 14)[None]
    batch = RowBatch(
        tokens_SR=ids,
        positions_SR=torch.arange(200)[None],
        live_SR=torch.ones_like(ids, dtype=torch.bool),
        tables=PageTables(table, table),
        max_length=200,
        ops=PROMPT_OPS,
    )
    output = serving.forward(batch, serving.new_cache(14, 14, 16))
    found = serving.logits(output.normed, PROMPT_OPS)
    assert float((found - expected[0]).abs().max() / expected.abs().max()) < 1e-4

    again = load_trainable(tmp_path, config)
    for quantized in (False, True):
        with torch.no_grad():
            assert torch.equal(logits_of(again, again.weights(dtype=torch.float32, quantized=quantized), ids), expected)


def test_documents_of_a_row_do_not_mix():
    model = random_model(SMOKE_TARGET)
    with torch.no_grad():
        weights = model.weights(dtype=torch.float32, quantized=False)
    ids = torch.randint(0, 4096, (1, 40), generator=torch.Generator().manual_seed(2))
    docs = torch.tensor([[0] * 15 + [1] * 25])
    together = logits_of(model, weights, ids, docs)
    torch.testing.assert_close(together[:, 15:], logits_of(model, weights, ids[:, 15:]), rtol=1e-4, atol=1e-4)


def test_sliding_attention_by_blocks_sees_the_same_keys():
    generator = torch.Generator().manual_seed(0)
    docs = torch.tensor([[0] * 5 + [1] * 40 + [2] * 19, [0] * 64])
    q, k, v = (torch.randn(2, 64, heads, 8, generator=generator) for heads in (4, 2, 2))
    sinks = torch.randn(4, generator=generator)
    full, blocks = masks_of(docs, 16)
    at = torch.arange(64)
    dense = full & (at[:, None] - at[None, :] < 16)
    assert blocks.shape == (2, 4, 16, 32) and int(blocks.sum()) == int(dense.sum()) < int(full.sum())
    torch.testing.assert_close(attend(q, k, v, blocks, sinks), attend(q, k, v, dense, sinks))
    assert torch.equal(masks_of(docs[:, :63], 16).sliding, dense[:, :63, :63])  # no whole number of windows


def test_generation_with_padding_is_greedy_decoding():
    model = random_model(SMOKE_TARGET)
    with torch.no_grad():
        weights = model.weights(dtype=torch.float32, quantized=False)
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 2, 1, 11, 12]]
    said = generate(model, weights, prompts, max_tokens=12, temperatures=[0.0, 0.0], stops=[4095])
    expected = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(12):
            ids.append(int(logits_of(model, weights, torch.tensor([ids]))[0, -1].argmax()))
        expected.append(ids[len(prompt) :])
    assert said == expected

    generator = torch.Generator().manual_seed(0)
    many = [prompts[1], *[prompts[0]] * 40]
    mixed = generate_all(
        model, weights, many, max_tokens=12, temperatures=[0.0, 0.0, *[1.0] * 39], stops=[4095], generator=generator
    )
    assert mixed[:2] == [expected[1], expected[0]]
    assert len({tuple(answer) for answer in mixed[2:]}) == 39  # a nearly flat distribution

    stop = expected[0][4]
    assert (
        generate(model, weights, prompts[:1], max_tokens=12, temperatures=[0.0], stops=[4095, stop])[0]
        == (expected[0][: expected[0].index(stop) + 1])
    )


def test_states_in_rows_are_those_of_the_serving_model(tmp_path):
    """Documents of many lengths, of which some share a row and one is longer than a row."""
    model = random_model(SMOKE_TARGET)
    with torch.no_grad():
        weights = model.weights(dtype=torch.float32, quantized=True)
    export_target(model, tmp_path, TOKENIZER)
    generator = torch.Generator().manual_seed(1)
    documents = [
        Document(
            ids_T=torch.randint(0, SMOKE_TARGET.vocab_size, (length,), generator=generator).int().numpy(),
            runs_T=torch.zeros(length, dtype=torch.int32).numpy(),
            segments_T=torch.zeros(length, dtype=torch.uint8).numpy(),
            source="",
        )
        for length in (3, 20, 30, 90, 1, 40, 24, 2)
    ]
    (batch,) = batches_in_order(documents, 512)
    taps = (2, 4, 5)
    serving = open_target(find_target(str(tmp_path), device="cpu"), taps=taps, longest=128)
    mine = BatchedStates(model, weights, taps=taps, teacher=Teacher(*serving.teacher), fingerprint="", row_tokens=64)
    for found, wanted in zip(mine.states(batch)[:2], serving.states(batch)[:2], strict=True):
        assert found.shape == wanted.shape
        assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-4


def test_the_target_fits_the_package(tmp_path):
    export_target(TargetModel(TARGET, torch.Generator().manual_seed(0)), tmp_path, TOKENIZER)
    assert set(check_sizes(tmp_path)) == {
        "config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"
    }  # fmt: skip


@pytest.mark.parametrize("shape", [(3, 8, 32), (2, 32, 8), (16, 16)])
def test_muon_updates_are_nearly_orthogonal(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalize(matrices))
    assert float(values.min()) > 0.3 and float(values.max()) < 1.3


def test_schedule_ends_on_time():
    clock = Clock(seconds=None, steps=4)
    assert [clock.tick() for _ in range(5)] == [0, 0.25, 0.5, 0.75, 1.0]
    timed = Clock(seconds=1e-9, steps=None)
    assert timed.tick() == 0 and timed.tick() >= 1
    factors = [cosine(i / 100) for i in range(101)]
    assert factors[2] == pytest.approx(1.0) and factors[-1] == pytest.approx(0.02)
    assert factors[3:] == sorted(factors[3:], reverse=True)
