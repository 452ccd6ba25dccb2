"""LiteLLM's proxy in front of an OpenAI endpoint, in a virtual environment of its own that is made once.

`EYAS_LITELLM` names a folder with the environment, or where it is to be made.
"""

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[3]
FOLDER = "EYAS_LITELLM"
PACKAGE = "litellm[proxy]<1.109"
READY_S = 180


def installed() -> Path:
    """Return the program, installed from the package index if it is not there yet."""
    folder = Path(os.environ.get(FOLDER, ROOT / ".clients" / "litellm"))
    program = folder / "bin" / "litellm"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", PACKAGE], check=True)
    return program


def config(url: str, model: str, key: str, master_key: str, name: str) -> str:
    """Return a configuration by which models called `name` are the model of an OpenAI endpoint."""
    return f"""
model_list:
  - model_name: "{name}"
    litellm_params:
      model: "openai/{model}"
      api_base: "{url}/v1"
      api_key: "{key}"
litellm_settings:
  use_chat_completions_url_for_anthropic_messages: true
  drop_params: true
  telemetry: false
general_settings:
  master_key: "{master_key}"
"""


@contextmanager
def running(
    program: Path, folder: Path, url: str, model: str, key: str, name: str = "claude-*"
) -> Iterator[tuple[str, str]]:
    """Start the proxy; yields its address and its key. Clients call the model `name`."""
    master_key = f"sk-{secrets.token_hex(24)}"
    path = folder / "litellm.yaml"
    path.write_text(config(url, model, key, master_key, name))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with (folder / "litellm.log").open("w+") as log:
        command = [program, "--config", path, "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(command, env=environ, cwd=folder, stdout=log, stderr=log)
        try:
            address, end = f"http://127.0.0.1:{port}", time.monotonic() + READY_S
            while not _is_ready(address):
                assert process.poll() is None and time.monotonic() < end, (folder / "litellm.log").read_text()
                time.sleep(0.3)
            yield address, master_key
        finally:
            process.terminate()
            process.wait()


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health/liveliness", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
