"""llama-server as a process of a test, started with the command that eyas plans."""

import socket
import subprocess
import time
from contextlib import contextmanager

import httpx

from eyas.recipes.engines.llama_cpp import emit
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Choice, Node

START_S = 120
CONTEXT = 2048
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")  # keys and values as we keep them on a CPU; f16 is its default
SERVER = {"temperature": 0, "cache_prompt": False, "return_tokens": True}  # greedy, each prompt from its start


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def command(binary, model, head=None, *, draft_tokens=3, slots=1):
    """The argv that eyas emits for the demo model's GGUF files on a DGX Spark (which a CPU takes as well)."""
    known = knowledge()
    record = known.head("demo-head") if head is not None else None
    choice = Choice(
        model="demo", model_path=str(model), engine="llama.cpp", version="0.5.0", image=None,
        method="none" if head is None else "eagle3", head=None if head is None else "demo-head",
        head_path=None if head is None else str(head), draft_tokens=0 if head is None else draft_tokens,
        context=CONTEXT, concurrency=slots, nodes=(Node(name="here"),), port=free_port(),
        cache="/nowhere", directory="/nowhere", name="test", binary=str(binary),
    )  # fmt: skip
    (launch,) = emit(choice, parse_box("spark"), known.model("demo"), record).launches
    return [*launch.argv, "-t", "2", "--poll", "0"]


@contextmanager
def running(argv, log):
    """An HTTP client of a server that was started with `argv` and is ready. It is stopped at the end."""
    port = argv[argv.index("--port") + 1]
    with log.open("wb") as stream, subprocess.Popen(argv, stdout=stream, stderr=stream) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
                _wait(client, process, log)
                yield client
        finally:
            process.kill()


def _wait(client, process, log):
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"llama-server did not start: {log.read_text(errors='replace')[-2000:]}")
