"""The way of attention that a run settles on: the fastest that is right, by kernels in Triton's interpreter."""

import pytest
import torch
import triton
from tests.kernels.support import interpreter  # noqa: F401, mends it
from tests.kernels.support.plain_library import plain_backward, plain_forward
from tests.support.training import head_config

from eyas.base.errors import UserError
from eyas.kernels.training import library
from eyas.train.heads import choosing, kernel_attention
from eyas.train.heads.choosing import choose_library, settled
from eyas.train.heads.ways import Way

interpreted = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="a GPU measures its own libraries")
CONFIG = head_config(num_heads=4, num_kv_heads=2, head_dim=16)
CPU, FP32 = torch.device("cpu"), torch.float32


def refused(*_):
    raise RuntimeError("no kernel for this shape\nand a trace")


def wrong(d_out, q, k, v, out, lse, rest):
    """A backward pass that makes a log-sum-exp of its own, of the keys that it sees."""
    _, own_lse, _ = plain_forward(q, k, v)
    return plain_backward(d_out, q, k, v, out, own_lse, rest)


@pytest.fixture
def small(monkeypatch):
    for name in ("MIN_ROWS", "MIN_KEYS", "GRAIN"):
        monkeypatch.setattr(kernel_attention, name, 8)
    return lambda name, forward, backward: monkeypatch.setitem(
        library.LIBRARIES, name, library.Library(forward, backward)
    )


@interpreted
@pytest.mark.parametrize(("order", "best"), [((3, 2, 1), "cudnn"), ((3, 1, 2), "flash"), ((1, 2, 3), "kernels")])
def test_the_fastest_is_taken(order, best, small):
    small("flash", plain_forward, plain_backward), small("cudnn", plain_forward, plain_backward)
    times = iter(order)
    found = choose_library(CONFIG, CPU, FP32, rows=16, keys=32, seconds=lambda call, _: call() and next(times) / 1e3)
    assert found.way == best and found.why.startswith(f"{best} for passes of 16 rows after 32 keys: kernels ")


@interpreted
def test_a_library_that_is_wrong_or_absent_is_left_out_and_named(small):
    small("flash", plain_forward, wrong), small("cudnn", refused, refused)
    found = choose_library(CONFIG, CPU, FP32, rows=16, keys=32, seconds=lambda call, _: call() and 1.0)
    assert found.way == "kernels"
    assert "flash is off by" in found.why and "cudnn failed: no kernel for this shape" in found.why
    assert "trace" not in found.why


def test_what_is_settled_without_measuring(monkeypatch):
    def way(name, deterministic=False, longest=100_000):
        return settled(name, CONFIG, CPU, FP32, rows=2048, longest=longest, deterministic=deterministic)

    assert way("auto") == ("plain", None) == way("plain")
    monkeypatch.setattr(choosing, "find_way", lambda *_: Way(True))
    assert way("auto", deterministic=True)[0] == "kernels" and way("auto", longest=4000)[0] == "kernels"
    assert way("flash") == ("flash", None) and way("kernels", deterministic=True) == ("kernels", None)
    with pytest.raises(UserError, match=r"train\.attention: cudnn does not give the same bits"):
        way("cudnn", deterministic=True)
    asked = []
    monkeypatch.setattr(choosing, "choose_library", lambda *_, **sizes: asked.append(sizes) or ("cudnn", "why"))
    assert way("auto") == ("cudnn", "why") and asked == [{"rows": 2048, "keys": 49 * 1024 - 1024}]
