"""Shared parts of the dialects' requests: sampling parameters, tools, prompt limits, model names."""
