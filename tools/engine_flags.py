"""Writes the tables of options in src/eyas/recipes/data/flags from the engines' published packages.

`python tools/engine_flags.py` makes all tables again, `... sglang 0.5.23` one (new or old). Packages are downloaded
with pip into `.engines/`, only their Python and JSON files are unpacked, and `engine_parser.py` asks their own parsers.
The tests in tests/engines use the same functions.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from functools import cmp_to_key
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eyas.recipes.versions import compare

__all__ = ["CACHE", "EngineParser", "Offline", "table", "tables"]

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".engines"
ENGINES = ("sglang", "vllm")
TABLES = ROOT / "src" / "eyas" / "recipes" / "data" / "flags"
# What the argument definitions import and a plain CPU machine can have. torch and transformers are the project's own.
LIBRARIES = (
    *("blake3", "cachetools", "cbor2", "cloudpickle", "dill", "fastapi", "opentelemetry-api", "orjson"),
    *("partial-json-parser", "pillow", "py-cpuinfo", "pybase64", "python-json-logger", "pyzmq", "setproctitle"),
)


class Offline(RuntimeError):
    """A package is neither in the cache nor to be had."""


def pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise Offline(f"pip {arguments[0]} failed: {lines[-1] if lines else done.returncode}")


def libraries(cache: Path) -> Path:
    folder = cache / "libraries"
    if not (folder / "complete").exists():
        pip("install", "--target", str(folder), "--no-deps", "--upgrade", *LIBRARIES)
        (folder / "complete").touch()
    return folder


def package(cache: Path, engine: str, version: str) -> Path:
    """The unpacked package. Wheels that lie in `cache/wheels` are used as they are."""
    folder = cache / f"{engine}-{version}"
    if (folder / "complete").exists():
        return folder
    wheels = cache / "wheels"
    if not list(wheels.glob(f"{engine}-{version}-*.whl")):
        # The files of the Linux wheels are read, on any machine.
        platforms = [f"manylinux_2_{minor}_x86_64" for minor in (28, 31, 34, 35)] + ["manylinux1_x86_64"]
        chosen = [word for name in platforms for word in ("--platform", name)]
        source = ("--no-deps", "--only-binary=:all:", "--python-version", "3.11", "-d", str(wheels))
        pip("download", *source, *chosen, f"{engine}=={version}")
    with zipfile.ZipFile(next(wheels.glob(f"{engine}-{version}-*.whl"))) as archive:
        names = [name for name in archive.namelist() if name.endswith((".py", ".json", "METADATA"))]
        archive.extractall(folder, names)
    (folder / "complete").touch()
    return folder


class EngineParser:
    """An engine's own parser, in its own process."""

    def __init__(self, engine: str, version: str, cache: Path = CACHE) -> None:
        self.engine, self.version = engine, version
        folder, extra = package(cache, engine, version), libraries(cache)
        command = [sys.executable, "-W", "ignore", str(ROOT / "tools" / "engine_parser.py"), engine, str(folder)]
        env = os.environ | {"PYTHONPATH": str(extra), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        with (folder / "parser.log").open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env
            )
        self._log = folder / "parser.log"
        self._answer()

    def ask(self, words: Sequence[str]) -> dict[str, Any]:
        """Return what the parser says of a command line; see engine_parser.py for questions."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(words)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def error(self, words: Sequence[str]) -> str | None:
        """Return why the parser refuses a command line; None when it takes it."""
        error: str | None = self.ask(words)["error"]
        return error

    def values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return what the parser makes of a command line. Raises ValueError when it refuses it."""
        answer = self.ask(words)
        if answer["error"] is not None:
            raise ValueError(answer["error"])
        values: dict[str, Any] = answer["values"]
        return values

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the engine's argument definitions could not be read:\n{self._log.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def table(engine: str, version: str, cache: Path = CACHE) -> list[str]:
    """All options of a version, sorted."""
    with EngineParser(engine, version, cache) as parser:
        options: list[str] = parser.ask(["?options"])["options"]
    return options


def tables() -> list[tuple[str, str]]:
    """Engine and version of each table made here, oldest version first."""
    found = [(engine, path.stem) for engine in ENGINES for path in (TABLES / engine).glob("*.txt")]
    by_release = cmp_to_key(compare)
    return sorted(found, key=lambda one: (one[0], by_release(one[1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("engine", nargs="?", choices=ENGINES)
    parser.add_argument("version", nargs="?")
    args = parser.parse_args()
    wanted = [(args.engine, args.version)] if args.version else tables()
    for engine, version in wanted:
        options = table(engine, version)
        day = datetime.date.today().isoformat()
        head = f"# Options of the published package {engine} {version}, from its own argument parser, {day}."
        path = TABLES / engine / f"{version}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([head, *options]) + "\n", encoding="ascii")
        print(f"{path.relative_to(ROOT)}: {len(options)} options")


if __name__ == "__main__":
    main()
