"""`eyas router` as a process of its own in front of backends, for tests that meet it from outside and kill it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml
from tests.router.support.scripted import free_port

__all__ = ["RouterProcess", "configuration", "router_process"]

READY_S = 120
STOP_S = 60


def configuration(urls: Mapping[str, str], port: int, model: str = "scripted", **rest: Any) -> dict[str, Any]:
    """Return a router's file: one model, its backends by name in order. `rest` are other keys of the file."""
    named = {"model": model} if len(urls) > 1 else {}
    backends = {name: {"url": url, **named} for name, url in urls.items()}
    for name, more in rest.pop("backends", {}).items():
        backends[name] |= more
    server = {"port": port} | rest.pop("server", {})
    return {"backends": backends, "models": {model: list(urls)}, "server": server, **rest}


class RouterProcess:
    """The process, which may be killed and started again."""

    def __init__(self, folder: Path, config: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> None:
        self.file, self._log = folder / "router.yaml", folder / "router.log"
        self.file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
        self.url = f"http://127.0.0.1:{config['server']['port']}"
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("EYAS_")}
        self._environ |= environ or {}
        self.start()

    @property
    def log(self) -> str:
        """All that it has written, over all starts."""
        return self._log.read_text()

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        with self._log.open("a") as log:
            command = [sys.executable, "-m", "eyas", "router", str(self.file)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environ)

    def kill(self) -> None:
        """End it as a lack of memory would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def status(self) -> dict[str, Any]:
        return httpx.get(f"{self.url}/router/status", timeout=10).json()

    def backend(self, name: str) -> dict[str, Any]:
        """How a backend stands."""
        return next(one for one in self.status()["backends"] if one["name"] == name)

    def until_up(self) -> None:
        """Wait until it takes requests."""
        self._until(lambda: httpx.get(f"{self.url}/router/status", timeout=10).status_code == 200)

    def until_ready(self, *names: str) -> None:
        """Wait until these backends serve, or all."""

        def is_ready() -> bool:
            states = {one["name"]: one["state"] for one in self.status()["backends"]}
            return all(states[name] == "ready" for name in names or states)

        self._until(is_ready)

    def _until(self, condition: Any) -> None:
        end = time.monotonic() + READY_S
        while True:
            with suppress(httpx.TransportError):
                if condition():
                    return
            assert self.process.poll() is None, self.log
            assert time.monotonic() < end, self.log
            time.sleep(0.05)

    def rss_mib(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def router_process(folder: Path, urls: Mapping[str, str], **rest: Any) -> Iterator[RouterProcess]:
    """Run a router in front of backends, of which all are ready; `rest` as in `configuration`."""
    router = RouterProcess(folder, configuration(urls, free_port(), **rest))
    try:
        router.until_ready()
        yield router
    finally:
        router.process.kill()
        router.process.wait()
        print(router.log, file=sys.stderr)
