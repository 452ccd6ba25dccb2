"""Messages between the HTTP process and the engine process: msgpack, each prefixed by its length in four bytes.

One message per step carries the events of all sequences, which costs a few microseconds per event.
"""

from __future__ import annotations

import socket
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from eyas.base.errors import EyasError
from eyas.base.settings.config import EngineConfig
from eyas.base.types import EngineStats, ModelInfo, Request, StepReport

__all__ = [
    "FROM_ENGINE",
    "MAX_MESSAGE_BYTES",
    "TO_ENGINE",
    "Alive",
    "Cancel",
    "Failed",
    "FromEngine",
    "Progress",
    "Reader",
    "Ready",
    "Start",
    "Step",
    "Stop",
    "Submit",
    "ToEngine",
    "WireError",
    "frame",
]

# The largest is a step with the prompt log-probabilities of 128k tokens, 20 a token: 40 MB.
MAX_MESSAGE_BYTES = 256 << 20
HEADER_BYTES = 4
RECEIVE_BYTES = 1 << 18


class WireError(EyasError):
    """Raised for bytes that are not a message, and for messages that are too large."""


class Start(Struct, frozen=True, tag=True, array_like=True):
    """The first message: the settings of the engine to load.

    `simulate_acceptance` belongs to a server's settings, and goes with random weights only.
    """

    config: EngineConfig
    log_format: Literal["text", "json"]
    simulate_acceptance: str | None = None


class Submit(Struct, frozen=True, tag=True, array_like=True):
    request: Request


class Cancel(Struct, frozen=True, tag=True, array_like=True):
    request_id: str
    choice: int | None = None


class Stop(Struct, frozen=True, tag=True, array_like=True):
    """Cancel all requests, deliver their last events, and exit."""


class Progress(Struct, frozen=True, tag=True, array_like=True):
    """Bytes of weights read so far, and in total."""

    done: int
    total: int


class Ready(Struct, frozen=True, tag=True, array_like=True):
    """Loaded and warm. `folder` is the checkpoint's, where the tokenizer is."""

    info: ModelInfo
    folder: str
    stats: EngineStats


class Failed(Struct, frozen=True, tag=True, array_like=True):
    """The error with which the engine process is about to exit; `by_user` for a user error (UserError)."""

    message: str
    by_user: bool


class Step(Struct, frozen=True, tag=True, array_like=True):
    """The report of one step, or of events between steps: cancellations, refusals."""

    report: StepReport


class Alive(Struct, frozen=True, tag=True, array_like=True):
    """Heartbeat, twice a second. `step` is the number of the current step, from 1; 0 between steps."""

    step: int


ToEngine = Start | Submit | Cancel | Stop
FromEngine = Progress | Ready | Failed | Step | Alive

MessageT = TypeVar("MessageT")

TO_ENGINE: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
FROM_ENGINE: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def frame(message: ToEngine | FromEngine) -> bytes:
    """Return the bytes of one message. Raises WireError for one that is too large."""
    buffer = bytearray(HEADER_BYTES)
    msgspec.msgpack.Encoder().encode_into(message, buffer, HEADER_BYTES)
    size = len(buffer) - HEADER_BYTES
    if size > MAX_MESSAGE_BYTES:
        raise WireError(f"a message of {size} bytes; at most {MAX_MESSAGE_BYTES} are sent")
    buffer[:HEADER_BYTES] = size.to_bytes(HEADER_BYTES, "big")
    return bytes(buffer)


class Reader(Generic[MessageT]):
    """Reads the messages of one direction from a connected stream socket, for one thread."""

    def __init__(self, sock: socket.socket, decoder: msgspec.msgpack.Decoder[MessageT]) -> None:
        self._sock = sock
        self._decoder = decoder
        self._buffer = bytearray()

    def receive(self) -> MessageT | None:
        """Wait for the next message, and return None once the other side has closed. Raises WireError, OSError."""
        if not self._fill(HEADER_BYTES):
            return None
        size = int.from_bytes(self._buffer[:HEADER_BYTES], "big")
        if size > MAX_MESSAGE_BYTES:
            raise WireError(f"a message of {size} bytes is announced; at most {MAX_MESSAGE_BYTES} are accepted")
        end = HEADER_BYTES + size
        self._fill(end)
        with memoryview(self._buffer) as view:
            try:
                message = self._decoder.decode(view[HEADER_BYTES:end])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise WireError(f"a message of {size} bytes cannot be read: {error}") from error
        del self._buffer[:end]
        return message

    def _fill(self, size: int) -> bool:
        """Fill the buffer with `size` bytes, and return False if the stream ended before the first of them."""
        while len(self._buffer) < size:
            part = self._sock.recv(RECEIVE_BYTES)
            if not part:
                if not self._buffer:
                    return False
                raise WireError(f"the connection ended within a message: {len(self._buffer)} of {size} bytes came")
            self._buffer += part
        return True
