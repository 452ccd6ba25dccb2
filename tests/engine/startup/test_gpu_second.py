"""A GPU that is not the first: kernels, graphs and the engine's thread all go there."""

from contextlib import closing

import pytest
import torch

from eyas.base.harmony.rendering import Message
from eyas.base.settings.config import EngineConfig
from eyas.base.types import SamplingParams
from eyas.engine.ports.threaded import Engine
from eyas.local import ask

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_second_gpu_answers_as_the_first():
    question, params = [Message(role="user", content="Tell me of birds")], SamplingParams(max_tokens=64, seed=3)
    answers = []
    for device in ("cuda:0", "cuda:1"):
        with closing(Engine.load(EngineConfig(model="demo", device=device, draft_tokens=3))) as engine:
            answers.append([token for event in ask(engine, question, params) for token in event.token_ids])
    assert answers[0] == answers[1] and len(answers[0]) > 1
