"""Measuring any OpenAI-compatible endpoint: load, acceptance, losslessness, and whether speculation pays."""
