"""Benchmarks: statistics, tables, one JSON line last."""
