"""Attention over a rectangle of keys by plain operations, in the place of a library's."""

import torch


def plain_forward(q, k, v):
    scores = torch.einsum("ngqd,sgd->ngqs", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("ngqs,sgd->ngqd", scores.softmax(-1), v), scores.logsumexp(-1), None


def plain_backward(d_out, q, k, v, out, lse, _):
    """By the formula for a part of a longer softmax."""
    scale = q.shape[-1] ** -0.5
    p = (torch.einsum("ngqd,sgd->ngqs", q, k) * scale - lse[..., None]).exp()
    d_scores = p * (torch.einsum("ngqd,sgd->ngqs", d_out, v) - (out * d_out).sum(-1, keepdim=True)) * scale
    d_q = torch.einsum("ngqs,sgd->ngqd", d_scores, k)
    return d_q, torch.einsum("ngqs,ngqd->sgd", d_scores, q), torch.einsum("ngqs,ngqd->sgd", p, d_out)
