"""Exported heads in speculators 0.9.0, its converter and its model, against `train/reference.py`.

speculators needs an environment of its own:

    python -m venv DIR && DIR/bin/pip install torch==2.13.0 speculators==0.9.0 'transformers<=5.19'
    EYAS_SPECULATORS=DIR/bin/python pytest -m engines tests/train/export/test_speculators.py

Its code cannot express: a head without fc, another hidden size than the target's, norm_before_fc with fc_norm. Its
converter makes room for three taps only and drops input_norm and fc_norm, which the oracle puts back.

Its rotary angles are fp32, ours fp64 rounded at the end: this, not the weights, is what differences are made of.
"""

import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.train.support.exported import FACTS, TARGET, VARIANTS, export, random_head

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.model.checkpoints.eagle3 import inspect_head
from eyas.model.checkpoints.loader import load_target
from eyas.model.making.make import make_target
from eyas.train.reference import ReferenceHead, TttBatch, training_time_test

DEPTHS, TOKENS = 7, 40
PYTHON = os.environ.get("EYAS_SPECULATORS")
SCRIPT = Path(__file__).with_name("speculators_oracle.py")
CPU = torch.device("cpu")
pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(not PYTHON, reason="EYAS_SPECULATORS does not name a python that has speculators 0.9.0"),
]


class Recording(ReferenceHead):
    def logits(self, hidden_BTH):
        self.seen.append(super().logits(hidden_BTH)[0])
        return self.seen[-1][None]


def reference_logits(head, inputs, ids_T, embed_VH):
    """Logits [J, T, Vd] of rows that pair taps with the next token."""
    plain = Recording(head.config, head.target_ids_V).double()
    plain.load_state_dict(head.state_dict())
    plain.seen = []
    batch = TttBatch(
        tokens_BT=ids_T[None],
        taps_BTC=inputs["taps_TC"][None],
        embedded_BTH=embed_VH[ids_T][None],
        target_logits_BTV=torch.zeros(1, len(ids_T), head.config.vocab_size, dtype=torch.float64),
        generated_BT=torch.ones(1, len(ids_T), dtype=torch.bool),
        documents_BT=inputs["documents_T"][None],
    )
    with torch.no_grad():
        training_time_test(plain, batch, num_steps=DEPTHS)
    return torch.stack(plain.seen)


def prepare(folder, head, target_folder, target, form):
    """Export a head and the inputs of a comparison: the case for the oracle, and the logits to expect."""
    folder.mkdir()
    name = str(target_folder)
    exported = export(head, folder / "head", form, target[0], facts=dataclasses.replace(FACTS, target=name))
    torch.manual_seed(1)
    ids_T = torch.randint(0, head.config.vocab_size, (TOKENS,))
    inputs = {
        "taps_TC": torch.randn(TOKENS, len(head.config.taps) * head.config.target_hidden_size, dtype=torch.float64),
        "ids_T": torch.cat((ids_T[1:], ids_T[:1] * 0)),
        "documents_T": torch.tensor([0] * 17 + [1] * (TOKENS - 17)),
    }
    save_file(inputs, folder / "inputs")
    case = {"folder": str(exported), "form": form, "target": name, "inputs": str(folder / "inputs")}
    return case | {"out": str(folder / "out")}, reference_logits(head, inputs, ids_T, target[1].embed_VH.double())


def ask(tmp_path, cases):
    (tmp_path / "cases").write_text(json.dumps(cases))
    done = subprocess.run([PYTHON, SCRIPT, tmp_path / "cases"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return [load_file(case["out"]) for case in cases]


def largest_difference(found, expected, head):
    """Over the rows of every depth whose next token exists."""
    assert torch.equal(found["target_ids_V"], head.target_ids_V)
    assert found["logits_JTV"].shape == expected.shape
    return max(
        float((found["logits_JTV"][j, : TOKENS - 1 - j] - expected[j, : TOKENS - 1 - j]).abs().max())
        for j in range(DEPTHS)
    )


def test_every_option_in_both_forms(tmp_path):
    target_folder = make_target(TARGET, tmp_path / "target")
    target = load_target(target_folder, device=CPU, dtype=torch.bfloat16)
    pairs = [(variant, form) for variant in VARIANTS for form in ("midlayer", "speculators")]
    names = [pair for pair in pairs if pair[0] != "no_fc" and pair != ("two_taps", "midlayer")]
    heads = [random_head(variant) for variant, _ in names]
    made = [
        prepare(tmp_path / f"{variant}-{form}", head, target_folder, target, form)
        for head, (variant, form) in zip(heads, names, strict=True)
    ]
    found = ask(tmp_path, [case for case, _ in made])
    worst = {
        name: largest_difference(one, expected, head)
        for name, one, (_, expected), head in zip(names, found, made, heads, strict=True)
    }
    for (variant, form), value in worst.items():
        print(f"{variant:>22} {form:>12} {value:.1e}")
    assert max(worst.values()) < 1e-5


def test_the_demo_head_in_both_forms(tmp_path):
    target = load_target(DEMO, device=CPU, dtype=torch.bfloat16)
    config = inspect_head(DEMO / OWN_HEAD, target[0])[0]
    tensors = load_file(DEMO / OWN_HEAD / "model.safetensors")
    head = ReferenceHead(config, tensors.pop("d2t") + torch.arange(config.draft_vocab_size))
    tensors.pop("t2d")
    head.load_state_dict(tensors)
    forms = ("midlayer", "speculators")
    made = [prepare(tmp_path / form, head, DEMO, target, form) for form in forms]
    found = ask(tmp_path, [case for case, _ in made])
    largest = float(made[0][1].abs().max())
    worst = [largest_difference(one, expected, head) for one, (_, expected) in zip(found, made, strict=True)]
    print(dict(zip(forms, worst, strict=True)), f"logits up to {largest:.1f}")
    assert max(worst) < 1e-6 * largest  # these logits are larger than fp32 could resolve to 1e-6
