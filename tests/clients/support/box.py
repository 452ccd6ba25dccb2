"""A server over a real engine whose answers a script decides: a small model of random weights with a long context."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from tests.clients.support.scripted import Recorder, Script, ScriptedPort
from tests.gateway.support.gateway import running

import eyas.demo
from eyas.base.settings.config import EngineConfig
from eyas.claude.server import ask
from eyas.claude.settings import make_settings
from eyas.cli import main
from eyas.engine.ports.process import EngineProcess
from eyas.gateway.app import create_app
from eyas.gateway.operation.auth import digests
from eyas.gateway.server.context import GatewayOptions

KEY = "a-key-of-the-test"
NAME = "small"
# So narrow that it reads some 10,000 tokens a second on one core: a first prompt has about 28,000 of the demo's tokens
SHAPE = (
    *("vocab_size=4096", "max_context=131072", "pad_id=4081", "num_layers=2", "hidden_size=32", "num_heads=1"),
    *("num_kv_heads=1", "head_dim=16", "num_experts=2", "experts_per_token=1"),
)


@dataclass
class Box:
    """A running server: its script, its engine's process and everything that it was asked."""

    url: str
    script: Script
    port: ScriptedPort
    engine: EngineProcess
    recorder: Recorder

    def settings(self, **env: str | None) -> dict:
        """Return the settings that `eyas claude` makes for it, with changes: None takes a variable away."""
        settings = make_settings(ask(self.url, key=KEY), {}, key=KEY)
        changed = {**settings["env"], **env}
        return settings | {"env": {name: value for name, value in changed.items() if value is not None}}


def make_model(folder: Path) -> Path:
    """Write the model, with the demo's tokenizer, into a new folder."""
    assert main(["models", "make", "tiny", *SHAPE, "--draft", "none", "--out", str(folder)]) == 0
    (demo,) = eyas.demo.__path__
    for name in ("tokenizer.json", "generation_config.json"):
        shutil.copy(Path(demo) / name, folder / name)
    return folder


@contextmanager
def serving(model: Path, *, context: int = 131_072, keep_reasoning: bool = False) -> Iterator[Box]:
    """Serve the model with a key; everything under /v1/ is recorded."""
    config = EngineConfig(model=str(model), draft="none", context=context, concurrency=4)
    engine = EngineProcess(config)
    script = Script()
    port = ScriptedPort(engine, engine.tokenizer, script)
    options = GatewayOptions(served_name=NAME, key_digests=digests(KEY), keep_reasoning=keep_reasoning)
    recorder = Recorder(create_app(port, engine.tokenizer, options))
    with running(recorder, engine) as url:
        assert httpx.get(f"{url}/ready").status_code == 200
        yield Box(url, script, port, engine, recorder)
