"""What a round on a GPU takes at most, and that it is known before weights are read."""

import pytest

from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig, ServeConfig
from eyas.engine.startup import build, load
from eyas.engine.startup.backend import check_round_size
from eyas.engine.startup.build import EngineOptions
from eyas.kernels.cuda.attention.attend_plan import MAX_SEQS
from eyas.recipes.knowledge.tables import knowledge


def test_rounds_that_fit():
    check_round_size(1)
    check_round_size(MAX_SEQS)


def test_a_number_that_does_not_fit_large_rounds_is_taken_and_said(caplog):
    caplog.set_level("INFO")
    options = EngineOptions(context=64, concurrency=512, drafter="eagle3", draft_tokens=7)
    few = "512 conversations at once 3 tokens are drafted, 7 with up to 256"
    for max_rows, said in ((None, []), (4096, []), (2048, [few])):
        caplog.clear()
        assert build._draft_length(options, None, None, max_rows).num_drafts == 7
        assert [record.message.split(": with ")[1] for record in caplog.records] == said


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"concurrency": MAX_SEQS + 1}, f"at most {MAX_SEQS} sequences.*--concurrency {MAX_SEQS}"),
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
