"""Cutting the text of an answer into messages."""
