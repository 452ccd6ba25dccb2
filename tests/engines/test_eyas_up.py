"""`eyas up` with engines that run here: llama-server on GGUF files that it wrote, and our own; killed and stopped.

The plan is one for a DGX Spark: what it says to a GPU, a CPU takes as well, and the demo model is small.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import pytest
from tests.engines.support.llama import free_port

from eyas.client.endpoint.acceptance.adapters import read

BIN = Path(sys.executable).parent
WAIT_S = 150  # for a loaded machine; every wait ends as soon as what it waits for is there
QUESTION = "What does os.path.join do?"


class Machine:
    """A home of its own for everything that `eyas` keeps and starts."""

    def __init__(self, home):
        self.home = home
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        mine = {name: value for name, value in os.environ.items() if not name.startswith("EYAS_")}
        self.environment = mine | {"HOME": str(home), "EYAS_HOME": str(home / "eyas"), "PATH": path}

    def eyas(self, *words, code=0):
        done = subprocess.run(
            [BIN / "eyas", *words], env=self.environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == code, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def rows(self):
        return [json.loads(line) for line in self.eyas("ps", "--all", "--json").splitlines()]

    def processes(self):
        """{pid: command line} of all that was started from this home, supervisor and engine."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:  # it has ended
                continue
            if f"HOME={self.home}".encode() in environment and words != [b""]:
                found[int(folder.name)] = [word.decode() for word in words if word]
        return found


@pytest.fixture
def machine(tmp_path):
    one = Machine(tmp_path)
    yield one
    subprocess.run([BIN / "eyas", "down", "--all"], env=one.environment, check=False, timeout=WAIT_S)


def wait_until(condition):
    end = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)
    return found


def stream(port):
    """Content and its number of pieces."""
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none")
    chunks = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=200, stream=True
    )
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    return "".join(pieces), len(pieces)


@pytest.mark.parametrize("engine", ["llama.cpp", "eyas"])
def test_up_answers_survives_and_goes_down(machine, engine, request):
    port = free_port()
    binary = request.getfixturevalue("llama_server") if engine == "llama.cpp" else BIN / "eyas"
    out = machine.eyas(
        "up", "demo", "--engine", engine, "--binary", str(binary), "--spec", "eagle3",
        "--draft-tokens", "3", "--context", "2048", "--concurrency", "2", "--port", str(port), "--name", "trial",
    )  # fmt: skip
    assert f"http://127.0.0.1:{port}/v1" in out

    text, num_pieces = stream(port)
    assert "`os.path`" in text and "Join two or more pathname components" in text and num_pieces > 3
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        found = read(engine, client)
    print(f"{engine}: acceptance length {found.acceptance_length:.2f} ({found.source})")
    assert 2 < found.acceptance_length <= 4
    (row,) = machine.rows()
    assert (row["status"], row["restarts"], row["engine"].split()[0]) == ("ready", 0, engine)
    assert 2 < float(row["acceptance"]) <= 4

    (pid,) = [pid for pid, words in machine.processes().items() if is_server(words, port)]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: machine.rows()[0]["restarts"] == 1)
    wait_until(lambda: machine.rows()[0]["status"] == "ready")
    assert stream(port)[0] == text
    assert pid not in machine.processes()

    machine.eyas("down", "trial")
    wait_until(lambda: not machine.processes())
    assert machine.rows()[0]["status"] == "stopped"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def is_server(words, port):
    """The engine's first process: the others that carry the port in their command are its wrapper in sh."""
    return str(port) in words and Path(words[0]).name != "sh"


def test_a_server_of_embeddings_beside_one_of_chat(machine, llama_server):
    """Both from one model, on one machine: names, folders and ports differ, and each answers what it is for."""
    ports = {"text": free_port(), "embeddings": free_port()}
    for role, port in ports.items():
        flags = ("--role", role, "--engine", "llama.cpp", "--spec", "none", "--context", "2048")
        out = machine.eyas("up", "demo", *flags, "--binary", str(llama_server), "--port", str(port))
        assert f":{port}/v1" in out
    assert {row["name"] for row in machine.rows()} == {"demo-llama-cpp", "demo-embeddings-llama-cpp"}
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{ports['embeddings']}/v1", api_key="none")
    texts = ["The cat sleeps on the warm sofa.", "The cat sleeps on the soft sofa.", "import os"]
    first, second, other = (entry.embedding for entry in client.embeddings.create(model="demo", input=texts).data)
    assert len(first) == 256
    assert sum(map(float.__mul__, first, second)) > sum(map(float.__mul__, first, other))
    with pytest.raises(openai.APIStatusError, match="does not support embeddings"):
        openai.OpenAI(base_url=f"http://127.0.0.1:{ports['text']}/v1", api_key="none", max_retries=0).embeddings.create(
            model="demo", input=texts
        )
    assert stream(ports["text"])[0]
    for name in ("demo-llama-cpp", "demo-embeddings-llama-cpp"):
        machine.eyas("down", name)
