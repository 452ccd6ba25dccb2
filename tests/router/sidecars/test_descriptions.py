"""Descriptions: one question for each image, whatever happens meanwhile, and a history that stays as it was."""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import Unavailable
from eyas.router.sidecars.descriptions import FAILED_S, MAX_AT_ONCE, MAX_NEW, Descriptions, Session
from eyas.router.sidecars.images import Image

ME = Session("me", "s1")


def image(number: int) -> Image:
    url = f"https://a.example/{number}"
    return Image(url=url, digest=hashlib.sha256(url.encode()).digest())


def images(*numbers: int) -> list[Image]:
    return [image(number) for number in numbers]


class Seer:
    """A vision model that is asked; `broken` are the images for which it fails, `slow` those it never answers."""

    def __init__(self, **fields: Any) -> None:
        self.asked: Counter[int] = Counter()
        self.clients: list[str] = []
        self.broken: set[int] = set()
        self.slow: set[int] = set()
        self.num_running = self.num_most = self.num_left = 0
        self.now = 0.0
        self.descriptions = Descriptions(self._ask, now=lambda: self.now, **fields)

    async def _ask(self, body: bytes, client: str) -> bytes:
        number = int(json.loads(body)["messages"][0]["content"][1]["image_url"]["url"].rpartition("/")[2])
        self.asked[number] += 1
        self.clients.append(client)
        self.num_running += 1
        self.num_most = max(self.num_most, self.num_running)
        try:
            await asyncio.sleep(3600 if number in self.slow else 0.001)
        except asyncio.CancelledError:
            self.num_left += 1
            raise
        finally:
            self.num_running -= 1
        if number in self.broken:
            raise Unavailable("out")
        return json.dumps({"choices": [{"message": {"content": f"image {number}"}}]}).encode()

    async def of(self, *numbers: int, session: Session = ME, patience_s: float = 5.0) -> list[str | None]:
        return await self.descriptions.of(images(*numbers), session, patience_s=patience_s)


def test_an_image_is_asked_about_once() -> None:
    async def main() -> None:
        seer = Seer()
        assert await seer.of(1, 2, 1) == ["image 1", "image 2", "image 1"]
        assert await seer.of(1, 2, 3) == ["image 1", "image 2", "image 3"]
        assert await seer.of(1, session=Session("other")) == ["image 1"]
        assert set(seer.asked.values()) == {1} and set(seer.clients) == {"me"}

    asyncio.run(main())


def test_requests_at_once_share_a_question() -> None:
    async def main() -> None:
        seer = Seer()
        found = await asyncio.gather(*(seer.of(1, 2, session=Session(f"c{number}")) for number in range(30)))
        assert found == [["image 1", "image 2"]] * 30
        assert seer.asked == {1: 1, 2: 1}

    asyncio.run(main())


def test_who_leaves_ends_the_question_unless_others_wait() -> None:
    async def main() -> None:
        seer = Seer()
        seer.slow = {1}
        one, other = (asyncio.create_task(seer.of(1, session=Session(name))) for name in "ab")
        await asyncio.sleep(0.02)
        one.cancel()
        await asyncio.sleep(0.02)
        assert seer.num_running == 1
        other.cancel()
        await asyncio.sleep(0.02)
        assert (seer.num_running, seer.num_left) == (0, 1)
        seer.slow = set()
        assert await seer.of(1) == ["image 1"], "nobody's prompt had the line"

    asyncio.run(main())


def test_what_failed_keeps_its_line_in_the_session() -> None:
    async def main() -> None:
        seer = Seer()
        seer.broken, seer.slow = {1}, {2}
        assert await seer.of(1, 2, 3, patience_s=0.1) == [None, None, "image 3"]
        await asyncio.sleep(0.02)
        assert seer.num_running == 0
        seer.broken = seer.slow = set()
        assert await seer.of(1, 2, session=Session("me", "s2")) == ["image 1", "image 2"]
        for _ in range(3):  # each sight counts
            seer.now += FAILED_S * 0.9
            assert await seer.of(1, 2, 3) == [None, None, "image 3"]
        seer.now += FAILED_S * 1.1
        assert await seer.of(1, 2, 3) == ["image 1", "image 2", "image 3"]
        assert seer.asked == {1: 2, 2: 2, 3: 1}

    asyncio.run(main())


def test_limits() -> None:
    async def main() -> None:
        seer = Seer(limit=100)
        many = list(range(MAX_NEW + 5))
        found = await seer.of(*many)
        assert found == [None] * 5 + [f"image {number}" for number in many[5:]], "the newest"
        assert seer.num_most == MAX_AT_ONCE
        assert await seer.of(*many, 99) == [*found, "image 99"], "those that are known do not count"
        for start in range(100, 200, 10):
            await seer.of(*range(start, start + 10))
        assert await seer.of(150) == ["image 150"] and seer.asked[150] == 1
        assert await seer.of(99) == ["image 99"] and seer.asked[99] == 2, "the least recently used is forgotten"
        assert await seer.descriptions.of([Image()], ME) == [None]

    asyncio.run(main())


def test_a_mistake_costs_no_answer() -> None:
    async def ask(body: bytes, client: str) -> bytes:
        raise RuntimeError("a mistake")

    assert asyncio.run(Descriptions(ask).of(images(1), ME)) == [None]


@given(
    st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=1, max_size=6),
    st.lists(st.sets(st.integers(0, 30)), min_size=6, max_size=6),
)
def test_a_session_only_grows(steps: Sequence[list[int]], broken: Sequence[set[int]]) -> None:
    async def main() -> None:
        seer = Seer()
        history: list[int] = []
        before: list[str | None] = []
        for new, fails in zip(steps, broken, strict=False):
            seer.broken = fails
            history += new
            now = await seer.of(*history)
            assert now[: len(before)] == before
            before = now
        assert all(number == 1 for number in seer.asked.values())

    asyncio.run(main())
