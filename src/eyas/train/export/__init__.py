"""Writes a trained head as a checkpoint that engines load."""
