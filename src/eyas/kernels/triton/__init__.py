"""Triton kernels: the rows of prompts, and what turns logits into tokens."""
