"""On a GPU nothing is captured or compiled beside answers, whatever is asked first."""

import pytest
import triton
from tests.engine.support.steady import answer_all_kinds

from eyas.base.settings.config import EngineConfig
from eyas.engine.round.stages import CudaGraphs
from eyas.engine.startup.load import load_model
from eyas.engine.startup.warm_up import warm_up
from eyas.kernels.cuda import compiler

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("drafter", "draft_tokens"), [("none", 0), ("eagle3", 3), ("ngram", 2), ("eagle3", "auto")])
@pytest.mark.parametrize("concurrency", [5, 80])
def test_no_request_waits_for_a_capture_or_a_compiler(demo_model, monkeypatch, drafter, draft_tokens, concurrency):
    model = load_model(EngineConfig(device="cuda"))
    core = model.build(drafter=drafter, draft_tokens=draft_tokens, concurrency=concurrency, context=512).core
    warm_up(core)
    captured, compiled, capture = [], [], CudaGraphs._capture
    monkeypatch.setattr(CudaGraphs, "_capture", lambda *args: captured.append(args[1]) or capture(*args))
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **facts: compiled.append(facts["repr"]))
    modules = compiler._load.cache_info().misses
    answer_all_kinds(core, demo_model, concurrency + 4)
    assert (captured, compiled, compiler._load.cache_info().misses) == ([], [], modules)
