"""The reference trainer against the serving head, plain loops, and what it must be able to learn."""

import dataclasses
import math

import pytest
import torch
from safetensors.torch import load_file

from eyas.kernels.reference.layers.ops import LayerCache
from eyas.kernels.reference.layers.roles import PROMPT_OPS
from eyas.model.batch import PageTables, RowBatch
from eyas.model.checkpoints.loader import load_head, load_target
from eyas.model.config import FINAL_NORM_TAP
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import PRESETS, default_head
from eyas.model.networks.eagle3 import Eagle3Head
from eyas.train.reference import ReferenceHead, TttBatch, training_time_test

TARGET = PRESETS["tiny"]
VARIANTS = {
    "classic": {},
    "norm-before": {"norm_before_residual": True, "norm_before_fc": True},
    "fc-norm": {"fc_norm": True, "norm_output": True},
    "final-norm": {"taps": (FINAL_NORM_TAP,), "has_fc": False},
    "llama3": {"rope": dataclasses.replace(TARGET.rope, kind="llama3", factor=8.0, original_context=32)},
}
torch.set_num_threads(1)
CPU = torch.device("cpu")


class Recording(ReferenceHead):
    """Keeps the logits of every step."""

    def logits(self, hidden_BTH):
        found = super().logits(hidden_BTH)
        self.seen.append(found)
        return found


def head_on_disk(tmp_path, **changes):
    config = default_head(TARGET, draft_vocab_size=96, intermediate_size=128, **changes)
    make_target(TARGET, tmp_path / "target")
    return config, make_head(config, tmp_path / "head", target=TARGET)


def reference_of(config, folder):
    tensors = load_file(folder / "model.safetensors")
    ids = tensors.pop("d2t") + torch.arange(config.draft_vocab_size)
    tensors.pop("t2d")
    head = Recording(config, ids)
    head.load_state_dict(tensors)
    head.seen = []
    return head


def random_batch(config, *, rows=1, tokens=24, seed=0, dtype=torch.float32, documents=None):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, (rows, tokens), generator=generator)
    width = len(config.taps) * config.target_hidden_size

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype)

    embedding = normal(config.vocab_size, config.hidden_size)
    return TttBatch(
        tokens_BT=ids,
        taps_BTC=normal(rows, tokens, width),
        embedded_BTH=embedding[ids],
        target_logits_BTV=3 * normal(rows, tokens, config.vocab_size),
        generated_BT=torch.rand(rows, tokens, generator=generator) < 0.8,
        documents_BT=torch.zeros_like(ids) if documents is None else documents,
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_drafts_what_the_serving_head_drafts(tmp_path, variant):
    """Every row of every step equals a draft that the serving head starts there, over paged keys and values."""
    config, folder = head_on_disk(tmp_path, **VARIANTS[variant])
    target_config, target_weights = load_target(tmp_path / "target", device=CPU, dtype=torch.float32)[:2]
    loaded = load_head(folder, target_config, target_weights, device=CPU, dtype=torch.float32)
    serving = Eagle3Head(loaded, max_positions=64)
    batch = random_batch(config, tokens=14)
    tokens = batch.tokens_BT
    batch = dataclasses.replace(batch, embedded_BTH=target_weights.embed_VH[tokens])
    reference = reference_of(config, folder)
    num_steps = 4
    with torch.no_grad():
        training_time_test(reference, batch, num_steps=num_steps)
        fused = serving.fuse(batch.taps_BTC[0], PROMPT_OPS)
        for row in range(tokens.shape[1] - num_steps - 1):
            cache = LayerCache(*torch.zeros(2, 3, config.num_kv_heads, 16, config.head_dim))
            output = serving.forward(rows_at(tokens[:, 1 : row + 2], 1), fused[: row + 1], cache)
            for step in range(num_steps):
                expected = serving.logits(output.normed, PROMPT_OPS)[-1]
                torch.testing.assert_close(reference.seen[step][0, row], expected, rtol=1e-4, atol=1e-4)
                at = row + 2 + step
                hidden = serving.recur(output.hidden_TH[-1:])
                output = serving.forward(rows_at(tokens[:, at : at + 1], at), hidden, cache)


def rows_at(tokens_SR, start):
    positions = torch.arange(start, start + tokens_SR.shape[1])[None]
    table = torch.tensor([[1, 2]])
    return RowBatch(
        tokens_SR=tokens_SR,
        positions_SR=positions,
        live_SR=torch.ones_like(positions, dtype=torch.bool),
        tables=PageTables(table, table),
        max_length=start + tokens_SR.shape[1],
        ops=PROMPT_OPS,
    )


def test_loss_and_counts_are_the_formula(tmp_path):
    """Each cell by a plain loop: which are counted, which are trained, soft cross entropy, hits, overlap."""
    config, folder = head_on_disk(tmp_path)
    documents = torch.tensor([[0] * 9 + [1] * 11, [0] * 20])
    batch = random_batch(config, rows=2, tokens=20, documents=documents)
    head = reference_of(config, folder)
    result = training_time_test(head, batch, num_steps=3, decay=0.5)
    ids = head.target_ids_V.tolist()
    total = 0.0
    for step in range(3):
        losses = []
        for b in range(2):
            for t in range(20):
                s = t + 2 + step  # the predicted token
                inside = s < 20 and documents[b, s] == documents[b, t]
                counted = bool(inside and batch.generated_BT[b, s])
                assert result.counted_JBT[step, b, t] == counted
                if not counted:
                    continue
                target = batch.target_logits_BTV[b, s - 1].double()
                draft = head.seen[step][b, t].detach().double()
                best = int(target.argmax())
                assert result.hits_JBT[step, b, t] == (ids[int(draft.argmax())] == best)
                overlap = torch.minimum(target.softmax(0)[ids], draft.softmax(0)).sum()
                assert result.overlap_JBT[step, b, t] == pytest.approx(float(overlap), abs=1e-5)
                if best in ids:
                    p = target[ids].softmax(0)
                    losses.append(float(-(p * draft.log_softmax(0)).sum()))
        assert losses
        assert result.losses_J[step].item() == pytest.approx(math.fsum(losses) / len(losses), rel=1e-5)
        total += 0.5**step * math.fsum(losses) / len(losses)
    assert result.loss.item() == pytest.approx(total, rel=1e-5)


def test_packed_documents_are_as_good_as_alone(tmp_path):
    config, folder = head_on_disk(tmp_path)
    parts = [random_batch(config, tokens=size, seed=size) for size in (7, 12)]
    fields = [field.name for field in dataclasses.fields(TttBatch)]
    packed = TttBatch(**{name: torch.cat([getattr(part, name) for part in parts], dim=1) for name in fields})
    packed = dataclasses.replace(packed, documents_BT=torch.tensor([[0] * 7 + [1] * 12]))
    head = reference_of(config, folder)
    alone = [training_time_test(head, part, num_steps=4) for part in parts]
    single = torch.cat(head.seen[:4], 0)[:, :7], torch.cat(head.seen[4:], 0)
    head.seen.clear()
    together = training_time_test(head, packed, num_steps=4)
    logits = torch.cat(head.seen, 0)
    counted = together.counted_JBT[:, 0]
    assert torch.equal(counted, torch.cat([part.counted_JBT[:, 0] for part in alone], dim=1))
    expected = torch.cat(single, dim=1)
    torch.testing.assert_close(logits[counted], expected[counted], rtol=1e-4, atol=1e-5)


def test_gradients_by_finite_differences(tmp_path):
    config, folder = head_on_disk(tmp_path)
    head = reference_of(config, folder).double()
    batch = random_batch(config, tokens=10, dtype=torch.float64)

    def loss():
        return training_time_test(head, batch, num_steps=3).loss

    loss().backward()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in head.named_parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        slope = float((parameter.grad * direction).sum())
        eps = 1e-6
        with torch.no_grad():
            parameter.add_(eps * direction)
            up = loss().item()
            parameter.sub_(2 * eps * direction)
            down = loss().item()
            parameter.add_(eps * direction)
        assert slope == pytest.approx((up - down) / (2 * eps), rel=1e-4, abs=1e-7), name


def test_learns_a_deterministic_target(tmp_path):
    """A target that always continues token v with v + 1: the head must draft it at every depth."""
    config, folder = head_on_disk(tmp_path)
    head = reference_of(config, folder)
    ids = head.target_ids_V[:64]
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(config.vocab_size, config.hidden_size, generator=generator)
    starts = torch.randint(0, 64, (8, 1), generator=generator)
    tokens = ids[(starts + torch.arange(16)) % 64]
    following = ids[(starts + torch.arange(1, 17)) % 64]
    batch = TttBatch(
        tokens_BT=tokens,
        taps_BTC=embedding[tokens].repeat(1, 1, 3),
        embedded_BTH=embedding[tokens],
        target_logits_BTV=10.0 * torch.nn.functional.one_hot(following, config.vocab_size).float(),
        generated_BT=torch.ones_like(tokens, dtype=torch.bool),
        documents_BT=torch.zeros_like(tokens),
    )
    optimizer = torch.optim.AdamW(head.parameters(), lr=5e-3)
    for _ in range(40):
        optimizer.zero_grad()
        result = training_time_test(head, batch, num_steps=4)
        result.loss.backward()
        optimizer.step()
    rates = [float(h[c].float().mean()) for h, c in zip(result.hits_JBT, result.counted_JBT, strict=True)]
    assert min(rates) > 0.9, rates


def test_shared_noise_couples_as_the_formula_says(tmp_path):
    """P(same token) = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i) for independent Gumbel noise shared by both."""
    config, folder = head_on_disk(tmp_path)
    batch = random_batch(config, tokens=600)
    same = dataclasses.replace(
        batch,
        taps_BTC=batch.taps_BTC[:, :1].expand(-1, 600, -1),
        embedded_BTH=batch.embedded_BTH[:, :1].expand(-1, 600, -1),
        target_logits_BTV=batch.target_logits_BTV[:, :1].expand(-1, 600, -1) / 4,
        generated_BT=torch.ones_like(batch.generated_BT),
        documents_BT=torch.arange(600)[None] // 3,  # short documents: all first rows are alike
    )
    head = reference_of(config, folder)
    hits = []
    with torch.no_grad():
        for seed in range(10):
            result = training_time_test(head, same, num_steps=1, noise=torch.Generator().manual_seed(seed))
            hits.append(result.coupled_JBT[0, 0, ::3])
    draft = head.seen[0][0, 0].double()
    full = torch.full((config.vocab_size,), -torch.inf, dtype=torch.float64)
    full[head.target_ids_V] = draft
    p, q = same.target_logits_BTV[0, 0].double().softmax(0), full.softmax(0)
    inside = head.target_ids_V
    ratios = torch.maximum(p[None] / p[inside, None], q[None] / q[inside, None])
    expected = float((1 / ratios.sum(1)).sum())
    found = torch.cat(hits).double()
    error = math.sqrt(expected * (1 - expected) / len(found))
    assert abs(float(found.mean()) - expected) < 4 * error
