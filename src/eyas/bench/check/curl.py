"""Writes a request as a `curl` command to paste; the key is a variable of the shell, never its value."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from eyas.bench.check.finding import Request

__all__ = ["KEY", "command"]

KEY = "EYAS_API_KEY"
MAX_INLINE = 1_200  # bytes of a body that stands in the command itself


def command(request: Request, url: str, *, has_key: bool, folder: Path, name: str) -> str:
    """Return the command; a large body is written to `folder`/`name`.json and named in it. Raises OSError."""
    words = ["curl", "-sS", "-i"]
    if isinstance(request.body, dict) and request.body.get("stream"):
        words.append("-N")
    words.append(shlex.quote(url + request.path))
    if has_key:
        words.append(f'-H "Authorization: Bearer ${KEY}"')
    if request.body is not None:
        body = request.body if isinstance(request.body, str) else json.dumps(request.body)
        words.append("-H 'Content-Type: application/json'")
        if len(body) > MAX_INLINE:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{name.replace('/', '-').strip('-').replace(' ', '-')}.json"
            path.write_text(body, encoding="utf-8")
            words.append(f"--data-binary @{shlex.quote(str(path))}")
        else:
            words.append(f"-d {shlex.quote(body)}")
    return " ".join(words)
