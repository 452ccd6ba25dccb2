"""Logits of exported heads by speculators 0.9.0. Runs in an environment of its own: python speculators_oracle.py CASES.

CASES is a JSON list of {"folder", "form", "target", "inputs", "out"}. A head in the midlayer
form goes through the converter first. `inputs` holds taps_TC, ids_T (the token that each row is paired with) and
documents_T; `out` becomes a file of logits_JTV of 7 depths. The model drafts with eager attention on the CPU, in fp64
but for norms, attention weights and rotary angles, which its code makes in fp32.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from speculators.convert.eagle.eagle3_converter import Eagle3Converter
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

DEPTHS = 7


def converted(case, folder):
    """The converter asks its caller for norm_before_residual and the layer ids; all else it reads from config.json."""
    raw = json.loads((Path(case["folder"]) / "config.json").read_text())
    Eagle3Converter().convert(
        case["folder"],
        folder,
        base_model=case["target"],
        validate=False,
        norm_before_residual=raw.get("norm_before_residual", False),
        eagle_aux_hidden_state_layer_ids=raw.get("eagle_aux_hidden_state_layer_ids"),
    )
    return folder


def logits(folder, source, inputs):
    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    original = load_file(Path(source) / "model.safetensors")
    if "embed_tokens.weight" not in original:
        # Its loading makes room for an embedding without filling it (transformers 5.19), and looks for nan to fill it.
        model._load_verifier_weights(overwrite_embed_tokens=True)
    dropped = {name: value for name, value in original.items() if name.startswith(("input_norm", "fc_norm"))}
    model.load_state_dict(dropped, strict=False)  # the converter has no place for these norms
    model.double()
    found = []
    model.lm_head.register_forward_hook(lambda module, args, output: found.append(output[0].detach().clone()))
    with torch.no_grad():
        model(
            hidden_states=inputs["taps_TC"][None],
            input_ids=inputs["ids_T"][None],
            document_ids=inputs["documents_T"][None],
            position_ids=torch.arange(len(inputs["ids_T"]))[None],  # its default starts at 1: other fp32 angles
            ttt_steps=DEPTHS,
        )
    ids = torch.arange(model.draft_vocab_size) + (0 if model.d2t is None else model.d2t)
    return {"logits_JTV": torch.stack(found), "target_ids_V": ids}


def main():
    for case in json.loads(Path(sys.argv[1]).read_text()):
        with tempfile.TemporaryDirectory() as scratch:
            folder = case["folder"] if case["form"] == "speculators" else converted(case, scratch + "/converted")
            save_file(logits(folder, case["folder"], load_file(case["inputs"])), case["out"])


if __name__ == "__main__":
    main()
