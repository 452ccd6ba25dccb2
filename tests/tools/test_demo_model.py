"""The trainable target and head of the demo against the models that serve them, through the exported files."""

from pathlib import Path

import pytest
import torch
from decode import generate
from export import check_sizes, export_head, export_target
from optim import Clock, cosine, orthogonalize
from reload import load_trainable
from shapes import HEAD, SMOKE_HEAD, SMOKE_TARGET, TARGET
from target import TargetModel, hidden_states, rms_norm

from eyas.kernels.reference.roles import PROMPT_OPS
from eyas.model.batch import PageTables, RowBatch
from eyas.model.checkpoints.loader import load_head, load_target
from eyas.model.networks.gpt_oss import GptOss
from eyas.train.reference import ReferenceHead

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


def test_generation_with_padding_is_greedy_decoding():
    model = random_model(SMOKE_TARGET)
    with torch.no_grad():
        weights = model.weights(dtype=torch.float32, quantized=False)
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 2, 1, 11, 12]]
    said = generate(model, weights, prompts, max_tokens=12, temperature=0.0, stop=4095)
    for prompt, answer in zip(prompts, said, strict=True):
        ids = list(prompt)
        for _ in range(12):
            ids.append(int(logits_of(model, weights, torch.tensor([ids]))[0, -1].argmax()))
        assert answer == ids[len(prompt) :]


def test_exported_head_loads_and_everything_fits_the_package(tmp_path):
    """Sizes at full scale; the small head's numbers as the loader sees them."""
    export_target(TargetModel(TARGET, torch.Generator().manual_seed(0)), tmp_path / "target", TOKENIZER)
    ids = torch.arange(0, 4096, 2)
    export_head(ReferenceHead(HEAD, ids), tmp_path / "head", TARGET)
    sizes = check_sizes(tmp_path)
    assert set(sizes) == {f"target/{name}" for name in (
        "config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"
    )} | {"head/config.json", "head/model.safetensors"}  # fmt: skip

    export_target(random_model(SMOKE_TARGET), tmp_path / "small", TOKENIZER)
    head = ReferenceHead(SMOKE_HEAD, ids)
    export_head(head, tmp_path / "small-head", SMOKE_TARGET)
    config, weights = load_target(tmp_path / "small", device=CPU, dtype=torch.float32)[:2]
    serving_head = load_head(tmp_path / "small-head", config, weights, device=CPU, dtype=torch.float32)
    loaded = serving_head.weights
    assert serving_head.config == SMOKE_HEAD
    assert torch.equal(loaded.target_ids_V, ids)
    assert torch.equal(loaded.fc_HC, head.fc.weight.detach().bfloat16().float())


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
