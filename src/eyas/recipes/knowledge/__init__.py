"""Reads the tables of `recipes/data` and finds models, heads and boxes by name."""
