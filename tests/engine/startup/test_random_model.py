"""Models of random weights on a CPU: what is drawn, what is refused before anything is drawn, what they answer."""

import pytest
import torch

from eyas.base.errors import UserError
from eyas.base.settings.config import EngineConfig
from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.bench.engine.drive import run_requests
from eyas.bench.engine.rounds import Acceptance, count_rounds
from eyas.engine.startup.random_model import load_random_engine, random_model
from eyas.model.checkpoints.loader import load_target
from eyas.model.making.make import make_target
from eyas.model.making.presets import PRESETS
from eyas.model.weights import tensors_of

TINY = EngineConfig(model="random:tiny", device="cpu", concurrency=2, draft_tokens=3)


def test_weights_have_the_shapes_and_types_of_a_checkpoint(tmp_path):
    cpu = torch.device("cpu")
    folder = make_target(PRESETS["tiny"], tmp_path / "tiny")
    _, loaded = load_target(folder, device=cpu, dtype=torch.float32)
    drawn = random_model("tiny", TINY)
    assert drawn.simulated and drawn.head is None

    def shapes(weights):
        return [(tuple(tensor.shape), tensor.dtype) for tensor in tensors_of(weights)]

    assert shapes(drawn.weights) == shapes(loaded)
    assert random_model("tiny", TINY, least_vocabulary=600).weights.lm_head_VH.shape[0] == 600


def test_drafts_are_accepted_at_the_set_rate_and_no_token_ends_an_answer():
    loaded = load_random_engine(TINY, "0.7")
    requests = [
        Request(request_id=str(i), prompt_ids=(7, 8, i), params=SamplingParams(max_tokens=128, seed=i)) for i in (1, 2)
    ]
    done = run_requests(loaded.built.core, requests, batch=2)
    counts = Acceptance()
    for events in done.events.values():
        assert events[-1].finish is FinishReason.LENGTH
        counts.merge(count_rounds(events))
    rates = [counts.accepted[i] / counts.reached[i] for i in (1, 2, 3)]
    assert all(abs(rate - 0.7) < 0.15 for rate in rates), rates
    assert loaded.info.simulated and loaded.info.details["acceptance"] == "set to 0.7"


@pytest.mark.parametrize(
    ("model", "acceptance", "options", "message"),
    [
        ("random:gpt-oss-120b", None, {}, r"too little memory: the weights need 6\d\.\d+ GiB, cpu has"),
        ("random:tny", None, {}, "no shape 'tny'.*tiny"),
        ("random:tiny", "0.7", {"draft": "none"}, "needs drafts"),
        ("random:tiny", "0.7", {"draft_tokens": 0}, "needs drafts"),
        ("random:tiny", "5", {"draft_tokens": 3}, "with 3 drafts a round commits fewer than 4 tokens"),
        ("random:tiny", None, {"decode_weights": "12bit"}, "is for the kernels of a GPU"),
        ("random:tiny", None, {"context": 1024}, "longer than the model's 512"),
    ],
)
def test_what_cannot_be_drawn(monkeypatch, model, acceptance, options, message):
    monkeypatch.setattr("eyas.model.checkpoints.placing.available_bytes", lambda device: 20 << 30)
    config = EngineConfig(**{"model": model, "device": "cpu"} | options)
    with pytest.raises(UserError, match=message):
        load_random_engine(config, acceptance)
