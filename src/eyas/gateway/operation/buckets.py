"""Bounds of the histograms of `/metrics`: those of vLLM, and finer ones below where this server is faster.

Source of vLLM's bounds: vllm/v1/metrics/loggers.py of 0.25.1.
"""

from __future__ import annotations

__all__ = ["CHOICES", "LATENCY", "PER_TOKEN", "TOKENS", "TTFT"]

TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
CHOICES = (1, 2, 5, 10, 20)
# All in seconds.
TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
PER_TOKEN = (
    *(0.0005, 0.001, 0.002, 0.005),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY = (
    *(0.003, 0.01, 0.03, 0.1),
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
