"""The map of memory against what the driver counts."""

import pytest
import torch

from eyas.base.settings.config import EngineConfig
from eyas.base.types import Request, SamplingParams
from eyas.engine.startup.memory_map import driver_peak
from eyas.engine.startup.random_model import random_model
from eyas.engine.startup.warm_up import warm_up

pytestmark = pytest.mark.gpu


def test_the_memory_map_is_what_the_driver_counts():
    config = EngineConfig(draft="eagle3", draft_tokens=3, context=16384, concurrency=4)
    built = random_model("gpt-oss-20b", config).build()
    warm_up(built.core)
    owners = built.memory_bytes
    assert owners["screen"] > 590e6
    for index in range(4):
        prompt = tuple(range(index, index + 16_000))
        params = SamplingParams(max_tokens=8, ignore_eos=True, seed=index)
        built.core.add(Request(request_id=f"{index}", prompt_ids=prompt, params=params), lambda event: None)

    def run():
        while not built.core.is_idle:
            built.core.step()

    peak = driver_peak(torch.device("cuda"), run)
    assert sum(owners.values()) - owners["free"] == pytest.approx(peak, rel=0.02)
