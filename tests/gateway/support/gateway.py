"""What the gateway's tests share: a reply in Harmony, a real server in a thread, and waiting."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import tokenizers
import uvicorn

from eyas.base.tokens.tokenizer import CONTROL_TOKENS, TextCodec
from eyas.engine.ports.stub import StubEngine
from eyas.gateway.operation.connections import ConnectionLimits, uvicorn_options

CONTEXT = 600
REASONING = "The user greets. I greet back."
CONTENT = "Hello there! Gr\u00fc\u00dfe \U0001f985 from the nest."


def build_tokenizer(folder: Path) -> None:
    """Byte-level BPE over a few words, so small that most characters outside ASCII take several tokens."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[
            tokenizers.AddedToken(name, special=True, normalized=False) for name in (*CONTROL_TOKENS, "<|endoftext|>")
        ],
    )
    inner.train_from_iterator(["Hello there, user. The assistant greets back. analysis commentary final"] * 3, trainer)
    inner.save(str(folder / "tokenizer.json"))


def reply_ids(codec: TextCodec, reasoning: str = REASONING, content: str = CONTENT) -> list[int]:
    """What gpt-oss emits after `<|start|>assistant`: an analysis message, then the final one."""
    s = codec.special
    return [
        *[s["<|channel|>"], *codec.encode("analysis"), s["<|message|>"], *codec.encode(reasoning), s["<|end|>"]],
        *[s["<|start|>"], *codec.encode("assistant")],
        *[s["<|channel|>"], *codec.encode("final"), s["<|message|>"], *codec.encode(content), s["<|return|>"]],
    ]


@dataclass
class Server:
    url: str
    engine: StubEngine
    client: openai.OpenAI

    def chat(self, text: str = "Hi", **fields):
        return self.client.chat.completions.create(model="stub", messages=[{"role": "user", "content": text}], **fields)


@contextmanager
def running(app, engine: StubEngine, limits: ConnectionLimits | None = None, port: int = 0) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", port))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio itself leaves it to uvloop
    options = uvicorn_options(limits or ConnectionLimits(probe_s=0.05)) | {"timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(app, **options))

    async def run() -> None:
        await server.serve(sockets=[listener])
        engine.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether `condition` becomes true within `seconds`."""
    end = time.monotonic() + seconds
    while not (is_met := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return is_met
