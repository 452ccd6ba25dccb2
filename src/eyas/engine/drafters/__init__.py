"""Drafters, one file a kind."""
