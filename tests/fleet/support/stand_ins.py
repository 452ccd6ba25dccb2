"""Programs that stand in for tools of machines that are not here: they print what the real ones printed elsewhere.

`nvidia-smi` rows have the fields of `GPU_FIELDS`. H200: captured on a machine with two, driver 580.159.04. GB10: the
`[N/A]` of nvtop#449, nvitop#208 and llama-swap#782 (drivers 580.126 and 580.173). RTX PRO 6000 and RTX 5090: sizes and
names as quoted in public issues, the rest in the same form.
"""

import shlex
from pathlib import Path

H200_ROWS = tuple(
    f"{index}, NVIDIA H200, 9.0, 143771, 614, 143156, 580.159.04, GPU-009e6a2f-8e28-56e3-c55d-0000000000{index:02},"
    " Disabled"
    for index in range(8)
)
GB10_ROW = "0, NVIDIA GB10, 12.1, [N/A], [N/A], [N/A], 580.126.09, GPU-2dee1e25-b3b5-007e-2b55-79f2d0f2ebe5, [N/A]"
PRO_6000_ROW = (
    "0, NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 12.0, 97887, 633, 97249, 580.95.05,"
    " GPU-b5169cef-2205-c30e-f2b3-220cfa14bafd, Disabled"
)
RTX_5090_ROW = (
    "0, NVIDIA GeForce RTX 5090, 12.0, 32607, 494, 31600, 575.64.03, GPU-7518f6b0-991f-ce2b-3d37-c779130d3137, [N/A]"
)
TWO_H200_TOPOLOGY = (  # captured, with its escape codes
    "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\t0-31\t0\t\tN/A\n"
    "GPU1\tNV18\t X \t0-31\t0\t\tN/A\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
)
DRIVER_FAILED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running."
)


def put(folder: Path, name: str, body: str) -> Path:
    """An executable sh script called `name` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


def says(text: str, code: int = 0) -> str:
    """The body of a program that prints `text` and exits with `code`."""
    return f"printf '%s\\n' {shlex.quote(text)}\nexit {code}"


def nvidia_smi(folder: Path, *rows: str, topology: str = "", code: int = 0) -> Path:
    query, links = says("\n".join(rows), code), says(topology)
    cases = f'*--query-gpu=*)\n{query}\n;;\n"topo -m")\n{links}\n;;'
    return put(folder, "nvidia-smi", f'case "$*" in\n{cases}\nesac\nexit 1')


def docker(folder: Path, *, version: str = "28.2.2", runtimes: str = "io.containerd.runc.v2 nvidia runc") -> Path:
    """A docker whose daemon answers; images and containers are the business of each test."""
    return put(folder, "docker", f'case $1 in version) echo {version} ;; info) echo "{runtimes}" ;; *) exit 1 ;; esac')
