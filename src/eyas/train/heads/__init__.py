"""Trainable draft heads, one file a kind."""
