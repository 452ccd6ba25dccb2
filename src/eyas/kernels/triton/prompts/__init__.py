"""Triton kernels of prompt rows: norms, products, attention, experts."""
