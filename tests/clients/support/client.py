"""The real Claude Code: installing it once, and running it headless in a home of its own.

It is proprietary: it is installed when the tests run, and nothing that it says is kept. `EYAS_CLAUDE_CLIENT` names a
folder that has it already, or that it is to be installed into.
"""

import json
import os
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
VERSION = "2.1.330"
FOLDER = "EYAS_CLAUDE_CLIENT"
PACKAGE = "@anthropic-ai/claude-code"
LIMIT_S = 180


def installed() -> Path:
    """Return the client's native program, installed from npm if it is not there yet."""
    folder = Path(os.environ.get(FOLDER, ROOT / ".clients" / f"claude-{VERSION}"))
    programs = f"node_modules/{PACKAGE}-linux-*/claude"
    if not list(folder.glob(programs)):
        folder.mkdir(parents=True, exist_ok=True)
        npm = [
            "npm",
            "install",
            "--loglevel=error",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(folder),
            f"{PACKAGE}@{VERSION}",
        ]
        subprocess.run(npm, check=True, stdout=subprocess.DEVNULL)
    program = next(path for path in folder.glob(programs) if "musl" not in path.parent.name)
    package = json.loads((program.parent / "package.json").read_text())
    assert package["version"] == VERSION, f"{folder} has {package['version']}; these tests are for {VERSION}"
    return program


@dataclass
class Run:
    """What a headless run printed: `result` is its JSON."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict:
        return json.loads(self.out)

    @property
    def model_usage(self) -> dict:
        (usage,) = self.result["modelUsage"].values()
        return usage


class Client:
    """The client with a home and a project folder of its own."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.home = folder / "home"
        self.project = folder / "project"
        for made in (self.home, self.project):
            made.mkdir(parents=True)
        answered = {"hasCompletedOnboarding": True, "theme": "dark"}
        trusted = {str(self.project): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}}
        (self.home / ".claude.json").write_text(json.dumps(answered | {"projects": trusted}))

    @property
    def env(self) -> dict[str, str]:
        """An environment from which no request leads anywhere but to this machine."""
        dead = "http://127.0.0.1:9"
        ours = {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
        return {
            **ours,
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "HTTP_PROXY": dead,
            "HTTPS_PROXY": dead,
            "NO_PROXY": "127.0.0.1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
        }

    def command(self, settings: dict, *args: str) -> list[str]:
        """Return the command line of the client with `settings`, which are written to a file."""
        path = self.home / f"settings-{uuid.uuid4().hex}.json"
        path.write_text(json.dumps(settings))
        return [str(self.program), "--settings", str(path), *args]

    def run(
        self, settings: dict, prompt: str, *args: str, tools: Sequence[str] = ("Bash", "Read"), limit_s: float = LIMIT_S
    ) -> Run:
        """Ask one prompt headless."""
        allowed = ["--allowedTools", ",".join(tools)] if tools else []
        return self.launch(self.command(settings, "-p", prompt, "--output-format", "json", *allowed, *args), limit_s)

    def launch(self, command: Sequence[str], limit_s: float = LIMIT_S) -> Run:
        found = subprocess.run(
            command,
            cwd=self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        return Run(found.returncode, found.stdout, found.stderr)
