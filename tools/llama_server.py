"""Builds `llama-server` once from a source distribution, for the tests of `make test-engines`; list its options.

The source is that of llama-cpp-python, which carries llama.cpp whole. `python tools/llama_server.py` prints the path of
the binary, `--flags` the table of recipes/data/flags/llama.cpp.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".engines"
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
LLAMA_VERSION = "0.5.0"  # of the llama.cpp inside
BUILD = CACHE / f"llama-{LLAMA_VERSION}"
BINARY = "EYAS_LLAMA_SERVER"  # environment variable: use this one instead of building
OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
]


def binary() -> Path:
    """Return where llama-server is, or will be once it is built."""
    return Path(os.environ[BINARY]) if BINARY in os.environ else BUILD / "bin" / "llama-server"


def build() -> None:
    """Build it, in minutes at the first call. Needs cmake and a C++ compiler; ninja makes it faster."""
    folder = source() / "vendor" / "llama.cpp"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    subprocess.run(["cmake", "-S", folder, "-B", BUILD, *OPTIONS, *generator], check=True)
    jobs = str(os.cpu_count() or 1)
    subprocess.run(["cmake", "--build", BUILD, "--target", "llama-server", "--parallel", jobs], check=True)


def flags(server: Path) -> list[str]:
    """List all options in the help of `server`, except those that it only names as removed."""
    help_text = subprocess.run([server, "--help"], check=True, capture_output=True, text=True).stdout
    entries = re.split(r"\n(?=-)", help_text)[1:]
    found = {option for entry in entries if "has been removed" not in entry for option in _options(entry)}
    return sorted(found)


def _options(entry: str) -> Iterator[str]:
    """The options that an entry begins with: `-ngl,  --gpu-layers, --n-gpu-layers N   max. number ...`."""
    position = 0
    while match := re.compile(r"(--?[A-Za-z][\w-]*)(,?)\s*").match(entry, position):
        yield match[1]
        if not match[2]:
            return
        position = match.end()


def source() -> Path:
    """Return the source distribution, unpacked; it is downloaded at the first call."""
    folder = CACHE / f"{PACKAGE.replace('-', '_')}-{VERSION}"
    if not folder.exists():
        CACHE.mkdir(exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE]
        subprocess.run([*pip, "--dest", CACHE, f"{PACKAGE}=={VERSION}"], check=True)
        archive = folder.with_name(folder.name + ".tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(CACHE, filter="data")
        archive.unlink()
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flags", action="store_true", help="print the table of its options")
    args = parser.parse_args()
    server = binary()
    if not server.exists():
        build()
    if args.flags:
        print(
            f"# Options of llama-server {LLAMA_VERSION} (in {PACKAGE} {VERSION}): python tools/llama_server.py --flags"
        )
    print("\n".join(flags(server)) if args.flags else server)


if __name__ == "__main__":
    main()
