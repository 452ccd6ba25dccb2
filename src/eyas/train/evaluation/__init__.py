"""Acceptance of a head on given text, counted as the engine's rounds would."""
