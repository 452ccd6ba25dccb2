"""Sampling: logits to committed tokens."""
