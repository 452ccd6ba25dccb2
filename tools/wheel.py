"""Builds the wheel into dist/, installs it into a fresh environment outside the checkout and asks it a question there.

Usage: wheel.py [ARGUMENTS OF pip install]. Exits with 1 and a reason where one of these does not work.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUESTION = "What does os.path.join do?"
ANSWER = "os.path.join"
PIP = (sys.executable, "-m", "pip")
WAIT_S = 600


def build(root: Path) -> Path:
    """Build the one wheel in `root`/dist, after removing an earlier build, which would get into it."""
    shutil.rmtree(root / "build", ignore_errors=True)
    dist = root / "dist"
    for old in dist.glob("eyas-*.whl"):
        old.unlink()
    subprocess.run([*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, root], env=outside(), check=True)
    (made,) = dist.glob("eyas-*.whl")
    return made


def install(wheel: Path, folder: Path, arguments: list[str]) -> Path:
    """Return the `eyas` of a new environment in `folder`; `arguments` are those of `pip install`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [*PIP, "--python", folder / "bin" / "python", "install", "--quiet", *arguments]
    subprocess.run([*pip, f"{wheel}[engine]"], env=outside(), check=True)
    return folder / "bin" / "eyas"


def outside() -> dict[str, str]:
    """The environment without what would lead Python, pip or eyas back to the checkout."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "EYAS_", "VIRTUAL_ENV"))}


def said(eyas: Path, *command: str) -> str:
    """Return what the command prints, started in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [eyas, *command], cwd=folder, env=outside(), stdout=subprocess.PIPE, text=True, timeout=WAIT_S, check=True
        )
    return done.stdout


def main() -> None:
    try:
        wheel = build(ROOT)
        print(f"wheel: {wheel.relative_to(ROOT)}, {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        with tempfile.TemporaryDirectory(prefix="eyas-wheel-") as folder:
            eyas = install(wheel, Path(folder), sys.argv[1:])
            print("wheel: installed:", said(eyas, "--version").strip(), flush=True)
            answer = said(eyas, "generate", QUESTION)
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"wheel: {error}")
    print(f"wheel: asked: {QUESTION}\n{answer}", end="")
    if ANSWER not in answer:
        sys.exit("wheel: that is no answer to the question")


if __name__ == "__main__":
    main()
