"""The engine without a model: who fails to take what it says costs nobody else an answer."""

import queue
from contextlib import closing

from eyas.base.settings.config import EngineConfig
from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.engine.ports.null import load_null
from eyas.local import describe


def test_an_observer_or_a_receiver_that_fails_costs_its_own_part_only(caplog):
    with closing(load_null(EngineConfig(model="null"))) as engine:
        inbox, params = queue.SimpleQueue(), SamplingParams(max_tokens=4)
        engine.observe(lambda report: 1 / 0)
        engine.submit(Request(request_id="a", prompt_ids=(1,), params=params), lambda event: 1 / 0)
        engine.submit(Request(request_id="b", prompt_ids=(1,), params=params), inbox.put)
        while (event := inbox.get(timeout=30)).finish is None:
            pass
        assert event.finish is FinishReason.STOP
    assert "step observer raised" in caplog.text and "token callback of request a raised" in caplog.text


def test_people_are_told_that_there_is_no_model():
    with closing(load_null(EngineConfig(model="null:20"))) as engine:
        assert describe(engine).startswith("model    null (SIMULATED: no model, its answers are made up): context")
