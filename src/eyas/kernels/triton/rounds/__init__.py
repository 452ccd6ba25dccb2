"""Triton kernels around a pass: which rows it has, which tokens come of its logits, which are kept."""
