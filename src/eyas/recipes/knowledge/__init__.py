"""Reads the tables of `recipes/data` and names what people ask about."""
