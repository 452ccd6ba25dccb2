"""Fixtures: models for engines."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.support.exactness import Model

from eyas.base.bundled import DEMO, OWN_HEAD
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.model.checkpoints.loader import load_head, load_target
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import PRESETS, default_head


def random_weights(folder: Path, **changes) -> Model:
    """A random target and head in the real file format, loaded in fp32. A step takes as long as it has layers."""
    device = torch.device("cpu")
    config = replace(PRESETS["tiny"], num_layers=3, layer_is_sliding=(True, False, True), **changes)
    make_target(config, folder / "target", seed=1)
    make_head(default_head(config, taps=(1, 2, 3)), folder / "head", target=config, seed=2)
    config, weights = load_target(folder / "target", device=device, dtype=torch.float32)
    head = load_head(folder / "head", config, weights, device=device, dtype=torch.float32)
    return Model(config=config, weights=weights, head=head)


@pytest.fixture(scope="session")
def random_model(tmp_path_factory) -> Model:
    return random_weights(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="session")
def random_speaker(tmp_path_factory) -> Model:
    """A random model with the bundled tokenizer, for grammars: a step takes a third of the bundled model's."""
    codec = Tokenizer.load(DEMO)
    special = {"eos_ids": (codec.special["<|return|>"], codec.special["<|call|>"]), "pad_id": codec.vocab_size - 1}
    model = random_weights(tmp_path_factory.mktemp("speaker"), vocab_size=codec.vocab_size, **special)
    return replace(model, codec=codec, tokenizer_json=DEMO / "tokenizer.json")


@pytest.fixture(scope="session")
def demo_model() -> Model:
    """The bundled model."""
    device = torch.device("cpu")
    config, weights = load_target(DEMO, device=device, dtype=torch.float32)
    head = load_head(DEMO / OWN_HEAD, config, weights, device=device, dtype=torch.float32)
    return Model(
        config=config, weights=weights, head=head, codec=Tokenizer.load(DEMO), tokenizer_json=DEMO / "tokenizer.json"
    )
