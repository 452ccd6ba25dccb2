"""The client in a terminal: keys go in, and what a person would see is read from the screen. Needs tmux."""

import shlex
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.clients.support.client import Client

SIZE = ("180", "60")
LIMIT_S = 90


class Terminal:
    """A terminal in which the client runs."""

    def __init__(self, server: str) -> None:
        self._server = server

    def _tmux(self, *args: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._server, "-f", "/dev/null", *args], check=True, capture_output=True, text=True
        )
        return done.stdout

    @property
    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-t", "client")

    @property
    def history(self) -> str:
        """The screen with what has scrolled out of it."""
        return self._tmux("capture-pane", "-p", "-S", "-", "-t", "client")

    def wait(self, text: str, *, limit_s: float = LIMIT_S) -> None:
        """Wait until the screen shows a text."""
        end = time.monotonic() + limit_s
        while text not in self.history:
            assert time.monotonic() < end, f"no {text!r} on this screen:\n{self.screen}"
            time.sleep(0.1)

    def say(self, text: str) -> None:
        """Type a line and send it; the client takes keys that come too fast for a paste."""
        self._tmux("send-keys", "-t", "client", "-l", text)
        time.sleep(0.5)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        for key in keys:
            self._tmux("send-keys", "-t", "client", key)
            time.sleep(0.2)

    @contextmanager
    def running(self, command: Sequence[str], env: dict[str, str], folder: str) -> Iterator[None]:
        words = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), *command]
        size = ("-x", SIZE[0], "-y", SIZE[1])
        self._tmux("new-session", "-d", "-s", "client", *size, "-c", folder, shlex.join(words))
        try:
            yield
        finally:
            self._tmux("kill-server")


@contextmanager
def interactive(client: Client, settings: dict, *args: str) -> Iterator[Terminal]:
    """Start the client in a terminal and wait until it takes a prompt."""
    terminal = Terminal(f"eyas-{uuid.uuid4().hex[:8]}")
    with terminal.running(client.command(settings, *args), client.env, str(client.project)):
        terminal.wait("? for shortcuts")
        yield terminal
