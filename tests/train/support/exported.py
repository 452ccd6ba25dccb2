"""Heads with each option, exported to a folder, for tests of the export."""

import dataclasses

import torch

from eyas.model.config import FINAL_NORM_TAP, RopeConfig
from eyas.model.making.presets import PRESETS, default_head
from eyas.train.export.card import Facts
from eyas.train.export.head import export_head
from eyas.train.reference import ReferenceHead

TARGET = dataclasses.replace(PRESETS["tiny"], num_layers=8, layer_is_sliding=(True, False) * 4)
FACTS = Facts(
    target="openai/gpt-oss-20b",
    data="1,204 chats",
    data_hash="ab" * 32,
    steps=1200,
    settings={"train.lr": 2e-4, "data.train": "/home/user/secret/chats.jsonl", "data.eval": ["held_out.jsonl"]},
    hardware="2 CPU cores",
)
VARIANTS = {
    "classic": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "all": {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
    "whole_vocabulary": {"draft_vocab_size": TARGET.vocab_size},
    "llama3": {"rope": RopeConfig(theta=500000.0, kind="llama3", factor=8.0, original_context=32)},
    "yarn": {"rope": RopeConfig(theta=150000.0, kind="yarn", factor=4.0, original_context=32)},
    "other_taps": {"taps": (2, 3, 6)},
    "two_taps": {"taps": (3, 8)},
    "no_fc": {"taps": (FINAL_NORM_TAP,), "has_fc": False},
}


def random_head(variant, seed=0):
    """A head whose norms do something, in bf16 values."""
    options = {"draft_vocab_size": 96, "intermediate_size": 128, **VARIANTS[variant]}
    config = default_head(TARGET, **options)
    torch.manual_seed(seed)
    ids = torch.randperm(TARGET.vocab_size)[: config.draft_vocab_size].sort().values
    head = ReferenceHead(config, ids)
    with torch.no_grad():
        for name, value in head.named_parameters():
            value.copy_((value + 0.3 * torch.randn_like(value) if "norm" in name else 1.5 * value).bfloat16())
    return head


def export(head, folder, form, target=TARGET, **options):
    return export_head(
        head.config,
        head.state_dict(),
        head.target_ids_V,
        folder,
        form=form,
        target=target,
        **({"facts": FACTS} | options),
    )
