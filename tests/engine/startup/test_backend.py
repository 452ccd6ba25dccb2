"""What a round on a GPU takes at most, and that it is known before weights are read."""

import pytest

from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig, ServeConfig
from eyas.engine.startup import load
from eyas.engine.startup.backend import check_round_size
from eyas.kernels.cuda.attend import MAX_SEQS
from eyas.recipes.knowledge.tables import knowledge


@pytest.mark.parametrize(("concurrency", "max_drafts"), [(64, 7), (64, 0), (30, 16), (1, 16)])
def test_rounds_that_fit(concurrency, max_drafts):
    check_round_size(concurrency, max_drafts)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"concurrency": 65}, "at most 64 sequences.*--concurrency 64"),
        ({"concurrency": 32, "draft_tokens": 16}, "lower --concurrency to 30 or --draft-tokens to 15"),
        ({"context": 1 << 20}, "longer than the model's"),
    ],
)
def test_what_no_engine_does_is_refused_before_weights_are_read(wanted, said, monkeypatch):
    def read(*_, **__):
        raise AssertionError("weights were read")

    monkeypatch.setattr(load, "load_target", read)
    monkeypatch.setattr(load, "can_use_kernels", lambda device, config: True)
    with pytest.raises(UserError, match=said):
        load.load_model(EngineConfig(device="cpu", **wanted))


def test_help_and_planner_name_the_limit():
    (setting,) = (item for item in ServeConfig.__dataclass_fields__.values() if item.name == "concurrency")
    assert f"on a GPU at most {MAX_SEQS}" in setting.metadata["help"]
    assert knowledge().engines["eyas"].max_gpu_concurrency == MAX_SEQS
