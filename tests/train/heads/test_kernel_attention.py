"""A whole step with the kernels, in Triton's interpreter, against the reference; rectangles by any library."""

from types import SimpleNamespace

import pytest
import torch
import triton
from tests.kernels.support import interpreter  # noqa: F401, mends it
from tests.kernels.support.plain_library import plain_backward, plain_forward
from tests.support.training import head_config, new_head, packed, states_for
from tests.train.loss.test_step import assert_equal_gradients, step

from eyas.base.errors import UserError
from eyas.kernels.training import library
from eyas.train.heads import eagle3, kernel_attention, numerics
from eyas.train.heads.kernel_attention import pass_rows
from eyas.train.heads.ways import Way, find_way
from eyas.train.loss import teacher as loss_teacher

interpreted = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="a GPU rounds factors of products to tf32")
BF16, CPU, GPU = torch.bfloat16, torch.device("cpu"), torch.device("cuda")


@interpreted
@pytest.mark.parametrize(
    ("with_library", "lengths"), [pytest.param(False, (9, 20, 1, 31), marks=pytest.mark.slow), (True, (40, 5))]
)
def test_a_step_equals_that_of_plain_operations(with_library, lengths, monkeypatch):
    config = head_config(num_heads=4, num_kv_heads=2, head_dim=16)
    batch = packed(lengths, given=0.4)
    states, teacher = states_for(config, batch, dtype=torch.float32)
    head = new_head(config, dtype=torch.float32, rows_of_pass=24, rows_of_keys=40)
    loss, _, wanted = step(head, batch, states, teacher)
    rectangles = []
    monkeypatch.setattr(eagle3, "find_way", lambda *_: Way(True, "flash" if with_library else None))
    monkeypatch.setattr(kernel_attention, "MIN_ROWS", 2)
    monkeypatch.setattr(kernel_attention, "MIN_KEYS", 8)
    monkeypatch.setattr(kernel_attention, "GRAIN", 8)
    if with_library:

        def forward(q, k, v):
            rectangles.append((len(q), len(k)))
            return plain_forward(q, k, v)

        monkeypatch.setitem(library.LIBRARIES, "flash", library.Library(forward, plain_backward))
    found_loss, _, found = step(head, batch, states, teacher)
    assert abs(found_loss - loss) < 1e-5 * abs(loss)
    assert_equal_gradients(found, wanted, 3e-5)
    assert bool(rectangles) == with_library


def test_rows_of_later_documents_see_no_rectangle(monkeypatch):
    monkeypatch.setattr(kernel_attention, "MIN_ROWS", 2)
    rows = torch.tensor([4100, 4200, 4999, 5000, 5003, 6100])
    found = pass_rows(rows, rows.tolist(), (0, 1, 5000, 6000, 7000), has_library=True)
    assert (found.first, found.split, found.stop, found.num_begun) == (1, 4097, 6101, 3)
    assert found.rows.low_R.tolist() == [4097, 4097, 4097, 5000, 5000, 6000]
    alone = pass_rows(rows, rows.tolist(), (0, 1, 5000, 6000, 7000), has_library=False)
    assert alone.num_begun == 0 and alone.rows.low_R.tolist() == [1, 1, 1, 5000, 5000, 6000]


def test_what_a_device_or_head_lacks_is_named(monkeypatch, caplog):
    config = head_config(head_dim=64, num_heads=16, num_kv_heads=2)
    assert find_way("auto", config, CPU, torch.float32) == Way(False) == find_way("plain", config, GPU, BF16)
    with pytest.raises(UserError, match="flash is not possible here: cpu is no GPU"):
        find_way("flash", config, CPU, BF16)
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(get_device_capability=lambda _: (9, 0)))
    assert find_way("kernels", config, GPU, BF16) == Way(True)
    assert find_way("cudnn", config, GPU, BF16) == Way(True, "cudnn")
    assert find_way("auto", config, GPU, BF16).uses_kernels and not caplog.text
    assert find_way("auto", config, GPU, torch.float32) == Way(False) and "float32" in caplog.text
    with pytest.raises(UserError, match="no heads of 64 values, 3 to"):
        find_way("kernels", head_config(head_dim=64, num_heads=6, num_kv_heads=2), GPU, BF16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert find_way("auto", config, GPU, BF16) == Way(False) and "Hopper" in caplog.text


@interpreted
@pytest.mark.parametrize("kind", ["kl", *(pytest.param(x, marks=pytest.mark.slow) for x in ("hard", "lk"))])
def test_a_step_with_the_kernels_of_the_loss_equals_that_of_plain_operations(kind, monkeypatch):
    config = head_config()
    batch = packed((9, 12), given=0.3)
    states, teacher = states_for(config, batch, dtype=torch.float32)
    head = new_head(config, dtype=torch.float32, rows_of_pass=16)
    loss, sums, wanted = step(head, batch, states, teacher, tile=5, kind=kind)
    monkeypatch.setattr(loss_teacher, "has_kernels", lambda _: True)
    found_loss, found_sums, found = step(head, batch, states, teacher, tile=5, kind=kind)
    assert abs(found_loss - loss) < 1e-5 * abs(loss)
    assert_equal_gradients(found, wanted, 3e-5)
    assert torch.equal(found_sums.hits_J, sums.hits_J)
    torch.testing.assert_close(found_sums.overlap_J, sums.overlap_J, rtol=1e-5, atol=1e-6)


@interpreted
def test_a_step_with_the_kernels_of_rows_equals_that_of_plain_operations(monkeypatch):
    config = head_config(fc_norm=True, norm_output=True)
    batch = packed((9, 12), given=0.3)
    states, teacher = states_for(config, batch, dtype=torch.float32)
    head = new_head(config, dtype=torch.float32, rows_of_pass=16)
    loss, _, wanted = step(head, batch, states, teacher)
    asked = []
    monkeypatch.setattr(numerics, "has_kernels", lambda x: asked.append(x.shape) or True)
    found_loss, _, found = step(head, batch, states, teacher)
    assert asked and abs(found_loss - loss) < 1e-5 * abs(loss)
    assert_equal_gradients(found, wanted, 3e-5)
