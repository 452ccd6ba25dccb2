"""Benchmarks that load an engine of their own."""
