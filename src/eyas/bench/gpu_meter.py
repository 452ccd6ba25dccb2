"""Records clocks, power and temperature of a GPU during a measurement, from `nvidia-smi` twice a second."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from types import TracebackType
from typing import Any

from eyas.bench.stats import Spread

__all__ = ["GpuMeter"]

FIELDS = {"sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem", "watts": "power.draw", "celsius": "temperature.gpu"}
PERIOD_MS = 500


class GpuMeter:
    """Context manager whose `readings` are complete when it exits. Without a GPU or `nvidia-smi` there are none."""

    def __init__(self, gpu_id: str | None) -> None:
        """Take the GPU's id as `nvidia-smi` knows it, of `eyas.model.hardware`."""
        self.gpu_id = gpu_id
        self.readings: dict[str, Spread] = {}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> GpuMeter:
        if self.gpu_id is not None:
            query = ",".join(FIELDS.values())
            command = ["nvidia-smi", f"--id={self.gpu_id}", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
            with suppress(OSError):
                self._process = subprocess.Popen(
                    [*command, f"--loop-ms={PERIOD_MS}"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        self.readings = read_meter(self._process.communicate()[0])

    def text(self) -> str:
        """Format the readings; empty without any."""
        if not self.readings:
            return ""
        units = {"sm_mhz": "SM clock {} MHz", "memory_mhz": "memory clock {} MHz", "watts": "{} W", "celsius": "{} C"}
        return ", ".join(units[name].format(spread.text(0)) for name, spread in self.readings.items())

    def json(self) -> dict[str, Any]:
        return {name: spread.json() for name, spread in self.readings.items()}


def read_meter(output: str) -> dict[str, Spread]:
    """Parse `nvidia-smi`'s lines; values that a GPU lacks (`[N/A]`) and a truncated last line are left out."""
    rows = [line.split(",") for line in output.splitlines() if line.count(",") == len(FIELDS) - 1]
    readings = {}
    for name, column in zip(FIELDS, zip(*rows, strict=True), strict=False):
        try:
            readings[name] = Spread(tuple(float(cell) for cell in column))
        except ValueError:
            continue
    return readings
