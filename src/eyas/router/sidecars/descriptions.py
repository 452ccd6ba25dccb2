"""Descriptions of images, each asked for once: remembered by the image's digest, so that a history stays as it was.

An image that could not be described in time keeps its line in that session: a description that came later would change
the prompt before everything that the session has cached. Other sessions ask again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from eyas.router.sidecars.images import Image
from eyas.router.sidecars.question import description_of, question

__all__ = ["PATIENCE_S", "Ask", "Descriptions", "Session"]

log = logging.getLogger(__name__)

Ask = Callable[[bytes, str], Awaitable[bytes]]
PATIENCE_S = 120.0  # of a request, for all of its images: the model may have to be loaded
MAX_NEW = 20  # images that one request asks about
MAX_AT_ONCE = 4  # of them
REMEMBERED = 4096  # descriptions, and as many images that have none
FAILED_S = 3600.0  # since it was last seen: a prompt that is older is in no cache


@dataclass(frozen=True, slots=True)
class Session:
    """A history that an image stands in. All of a client that does not name its sessions count as one."""

    client: str
    name: str | None = None


@dataclass(eq=False, slots=True)
class _Question:
    answer: asyncio.Task[str | None]
    num_waiting: int = 0


class Descriptions:
    """All descriptions of a router, used inside one event loop.

    `ask` sends the body of a chat completion to the vision model for a client, and returns the whole answer's body; it
    raises whatever it likes.
    """

    def __init__(self, ask: Ask, *, now: Callable[[], float] = time.monotonic, limit: int = REMEMBERED) -> None:
        self._ask, self._now, self._limit = ask, now, limit
        self._texts: OrderedDict[bytes, str] = OrderedDict()  # the least recently used first, as below
        self._failed: OrderedDict[tuple[Session, bytes], float] = OrderedDict()  # when it was last seen
        self._questions: dict[bytes, _Question] = {}

    async def of(
        self, images: Sequence[Image], session: Session, *, patience_s: float = PATIENCE_S
    ) -> list[str | None]:
        """Return the description of each image; None: it has none in this session.

        Of images that are new to it the newest MAX_NEW are asked about, and what has not come within `patience_s` is
        given up. Who stops waiting ends the question, unless others wait for it.
        """
        found: dict[bytes, str | None] = {}
        new: dict[bytes, Image] = {}
        for image in reversed(images):
            if image.digest is None or image.digest in found or image.digest in new:
                continue
            if self._has_failed(session, image.digest):
                found[image.digest] = None
            elif (text := self._texts.get(image.digest)) is not None:
                self._texts.move_to_end(image.digest)
                found[image.digest] = text
            elif len(new) < MAX_NEW:
                new[image.digest] = image
            else:
                found[image.digest] = None
                self._fail(session, image.digest)
        if new:
            for digest, text in (await self._asked(new, session, patience_s)).items():
                found[digest] = text
                if text is None:
                    self._fail(session, digest)
        return [None if image.digest is None else found[image.digest] for image in images]

    async def _asked(self, images: dict[bytes, Image], session: Session, patience_s: float) -> dict[bytes, str | None]:
        at_once = asyncio.Semaphore(MAX_AT_ONCE)

        async def one(digest: bytes, image: Image) -> str | None:
            async with at_once:
                return await self._shared(digest, image, session.client)

        tasks = {digest: asyncio.ensure_future(one(digest, image)) for digest, image in images.items()}
        try:
            await asyncio.wait(tasks.values(), timeout=patience_s)
        finally:
            ended = {digest: task for digest, task in tasks.items() if task.done() and not task.cancelled()}
            for task in tasks.values():
                task.cancel()
        return {digest: ended[digest].result() if digest in ended else None for digest in tasks}

    async def _shared(self, digest: bytes, image: Image, client: str) -> str | None:
        """Wait for the answer to a question that others may have asked already."""
        if (text := self._texts.get(digest)) is not None:
            return text
        asked = self._questions.get(digest)
        if asked is None:
            answer = asyncio.ensure_future(self._answer(digest, image, client))
            asked = self._questions[digest] = _Question(answer)
        asked.num_waiting += 1
        try:
            return await asyncio.shield(asked.answer)
        finally:
            asked.num_waiting -= 1
            if asked.num_waiting == 0:
                asked.answer.cancel()
                if self._questions.get(digest) is asked:
                    del self._questions[digest]

    async def _answer(self, digest: bytes, image: Image, client: str) -> str | None:
        try:
            text = description_of(await self._ask(question(image.url), client))
        except Exception as error:  # whatever keeps the sidecar from describing it, the request is answered
            log.warning("an image is not described: %s", str(error) or type(error).__name__)
            return None
        self._texts[digest] = text
        if len(self._texts) > self._limit:
            self._texts.popitem(last=False)
        return text

    def _has_failed(self, session: Session, digest: bytes) -> bool:
        key, now = (session, digest), self._now()
        since = self._failed.pop(key, None)
        if since is None or now - since > FAILED_S:
            return False
        self._failed[key] = now
        return True

    def _fail(self, session: Session, digest: bytes) -> None:
        self._failed[session, digest] = self._now()
        self._failed.move_to_end((session, digest))
        if len(self._failed) > self._limit:
            self._failed.popitem(last=False)
