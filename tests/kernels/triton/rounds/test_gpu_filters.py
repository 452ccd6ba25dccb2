"""Filters over rows that many programs share on a GPU."""

import pytest
import torch
from tests.kernels.support.filter_rows import bounds, chosen

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["normal", "flat", "grid", "peaked", "narrow"])
def test_large_rows_in_many_programs(kind):
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(201_088, generator=generator)
    peaks = 30.0 * (torch.rand(201_088, generator=generator) < 3e-5)
    scores = {
        "normal": normal * 3,
        "flat": normal * 0,
        "grid": (normal * 8).round() / 4,
        "peaked": normal * 2 + peaks,
        "narrow": normal / 1000,
    }[kind]
    noise = -torch.empty(32, 201_088).exponential_(generator=generator).log()
    rows = scores.to("cuda").expand(32, -1).contiguous()
    for filters in ((0, 0.9, 0.0), (50, 1.0, 0.0), (20, 0.8, 0.05), (1, 1.0, 0.0), (0, 0.0, 0.0), (1000, 0.95, 0.001)):
        surely, maybe = bounds(scores, *filters)
        tokens = chosen(rows, (scores + noise).to("cuda"), *filters, size=4096).cpu()
        for kept in (surely, maybe):
            wanted = (scores + noise).masked_fill(~kept, -torch.inf).argmax(1)
            assert (tokens == wanted).float().mean() > 0.95
        assert maybe[tokens].all()
