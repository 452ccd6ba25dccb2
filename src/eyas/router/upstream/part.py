"""Parts of an answer, between those who read a backend and the relay that sends them on."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Part"]


class Part(Struct, frozen=True, kw_only=True):
    """One event of a streamed answer, or all of a whole one."""

    data: bytes  # for the client, as it is
    text: str = ""  # what the model wrote in it, for the guard: content, reasoning and arguments of calls
    shows: bool = False  # the client sees something of the answer in it: from here on no other backend can answer
    is_last: bool = False  # the answer is complete with it
    is_noise: bool = False  # a comment, a ping or an empty delta: no progress, and nothing is lost without it
    error: str | None = None  # it says that the backend has failed, with this message
    is_mistake: bool = False  # it says that the request is wrong: no failure, and the last part
    stored: str | None = None  # the id under which the backend keeps the answer
