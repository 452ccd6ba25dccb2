"""Attention in CUDA C++: of generated rows over all that they see, and of prompt rows without a window."""
