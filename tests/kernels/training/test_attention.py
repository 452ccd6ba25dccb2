"""Attention of listed rows against one dense softmax and autograd, sums of keys' gradients included."""

import itertools

import pytest
import torch

from eyas.kernels.training.attention import Begun, RowList, attention_backward, attention_forward

GROUPS, QUERIES, DIM = 2, 8, 16
CASES = {
    "every row": ((150,), 1.0, 3),
    "rows of one run": ((5, 100), 0.97, 0),
    "packed documents": ((70, 3, 1, 90, 34), 1.0, 2),
    "runs of few rows": ((400,), 0.1, 1),
    "one row": ((260,), 0.0, 6),
}


def listed(lengths, share, generator):
    """Places of rows, and the first key of each row's document."""
    total = sum(lengths)
    at = (torch.rand(total, generator=generator) < share).nonzero()[:, 0]
    at = at if len(at) else torch.tensor([total - 2])
    starts = torch.tensor([0, *itertools.accumulate(lengths)])
    return at, starts[torch.searchsorted(starts, at, right=True) - 1]


def dense(q, keys, values, rows, own_keys, own_values):
    """Output and log-sum-exp of one softmax over keys low:at + 1 and own keys."""
    scale = q.shape[-1] ** -0.5
    places = torch.arange(len(keys), device=q.device)
    seen = (places <= rows.at_R[:, None]) & (places >= rows.low_R[:, None])
    scores = torch.einsum("rgqd,sgd->rgqs", q, keys) * scale
    scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    own = torch.einsum("rgqd,jrgd->rgqj", q, own_keys) * scale
    both = torch.cat((scores, own), -1)
    p = both.softmax(-1)
    out = torch.einsum("rgqs,sgd->rgqd", p[..., : len(keys)], values)
    return out + torch.einsum("rgqj,jrgd->rgqd", p[..., len(keys) :], own_values), both.logsumexp(-1)


def near(found, wanted, dtype):
    error = (found.double().cpu() - wanted.double().cpu()).norm() / wanted.double().norm().cpu().clamp(min=1e-30)
    assert error < (1e-5 if dtype == torch.float32 else 1e-2), error


FAST = (("packed documents", 0), ("one row", 101))
ALL = [(case, begun) for case in CASES for begun in (0, 32, 101)]


@pytest.mark.parametrize(
    ("case", "begun_keys"), [pytest.param(*x, marks=() if x in FAST else pytest.mark.slow) for x in ALL]
)
def test_equals_one_dense_softmax(case, begun_keys, device, dtype):
    lengths, share, num_own = CASES[case]
    generator = torch.Generator().manual_seed(len(case))

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(device, dtype)

    at, starts = (x.to(device) for x in listed(lengths, share, generator))
    total, num_rows = sum(lengths), len(at)
    # Keys below a limit were seen elsewhere by rows of the first document that stand behind them.
    split = begun_keys if lengths[0] > begun_keys and int(at[0]) >= begun_keys - 1 else 0
    num_begun = int((starts == 0).sum()) if split else 0
    low = torch.where(starts == 0, starts.clamp(min=split), starts)
    keys, values = normal(total, GROUPS, DIM), normal(total, GROUPS, DIM)
    q, d_out = (normal(num_rows, GROUPS, QUERIES, DIM) * 2 for _ in range(2))
    own_keys, own_values = normal(num_own, num_rows, GROUPS, DIM), normal(num_own, num_rows, GROUPS, DIM)
    rows = RowList(at, low)

    leaves = [x.detach().double().requires_grad_() for x in (q, keys, values, own_keys, own_values)]
    wanted, wanted_lse = dense(*leaves[:3], RowList(at, starts), *leaves[3:])
    wanted_grads = torch.autograd.grad(wanted, leaves, d_out.double())

    begun = None
    if split:
        first = RowList(torch.full_like(at[:num_begun], split - 1), starts[:num_begun])
        none = own_keys[:0, :num_begun].double()
        out, lse = dense(leaves[0][:num_begun].detach(), keys.double(), values.double(), first, none, none)
        begun = Begun(out.to(dtype).contiguous(), lse.float().contiguous())
    found, lse = attention_forward(q, keys, values, rows, own_keys, own_values, begun)
    near(found, wanted.detach(), dtype)
    near(lse, wanted_lse.detach(), dtype)

    sums = [torch.full(keys.shape, 0.5, device=device) for _ in range(2)]  # there are gradients of other passes
    grads = attention_backward(
        d_out, q, found, lse, keys, values, *sums, rows, own_keys, own_values,
        first_key=int(low[0]), last_key=int(at[-1]) + 1,
    )  # fmt: skip
    near(sums[0][split:] - 0.5, wanted_grads[1][split:], dtype)
    near(sums[1][split:] - 0.5, wanted_grads[2][split:], dtype)
    assert all((x[: int(low[0])] == 0.5).all() for x in sums)  # untouched
    if num_own:
        near(grads.own_keys_JRGD, wanted_grads[3], dtype)
        near(grads.own_values_JRGD, wanted_grads[4], dtype)
    if not split:
        near(grads.q_RGQD, wanted_grads[0], dtype)
        return
    begun_grad = torch.full_like(q[:num_begun], 8.0)
    more = attention_backward(
        d_out, q, found, lse, keys, values, *sums, rows, own_keys, own_values,
        first_key=int(low[0]), last_key=int(at[-1]) + 1, begun_NGQD=begun_grad,
    )  # fmt: skip
    near(more.q_RGQD[:num_begun] - grads.q_RGQD[:num_begun], begun_grad, dtype)
    near(more.q_RGQD[num_begun:], grads.q_RGQD[num_begun:], dtype) if num_begun < num_rows else None
