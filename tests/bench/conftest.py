"""A random model with its head and a tokenizer, in a folder, as `eyas bench` is given one."""

import pytest
from tests.gateway.support.gateway import build_tokenizer

from eyas.base.tokens.tokenizer import Tokenizer
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import default_head, parse_shape


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    config = parse_shape(["tiny", "num_layers=2"])
    folder = make_target(config, tmp_path_factory.mktemp("bench") / "model")
    make_head(default_head(config), folder / "eagle3", target=config)
    build_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def codec(model_folder):
    return Tokenizer.load(model_folder)
