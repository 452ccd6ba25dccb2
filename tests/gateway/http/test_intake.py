"""Bodies on their way into memory: room over all requests, in order, and not for those who are slow."""

import asyncio
import contextlib

import pytest
from starlette.requests import Request

from eyas.base.errors import Busy
from eyas.gateway.http import intake as module
from eyas.gateway.http.intake import SMALL, Intake

SIZE = 4 * SMALL


class Sender:
    """A request that sends `size` bytes, a part whenever it is told to."""

    def __init__(self, intake: Intake, *, size: int = SIZE, declared: bool = True) -> None:
        headers = [(b"content-type", b"application/json")]
        if declared:
            headers.append((b"content-length", str(size).encode()))
        self.size = size
        self.num_sent = 0
        self._told: asyncio.Queue[int] = asyncio.Queue()
        self.held = asyncio.Event()  # all of it has been read
        self._may_go = asyncio.Event()
        self.task = asyncio.create_task(
            self._send(intake, Request({"type": "http", "headers": headers}, self._receive))
        )

    async def _receive(self) -> dict:
        num_bytes = await self._told.get()
        self.num_sent += num_bytes
        return {"type": "http.request", "body": bytes(num_bytes), "more_body": self.num_sent < self.size}

    async def _send(self, intake: Intake, http: Request) -> int:
        async with intake.body(http) as raw:
            self.held.set()
            await self._may_go.wait()
            return len(raw)

    def send(self, *sizes: int) -> None:
        for size in sizes:
            self._told.put_nowait(size)

    def send_all(self) -> None:
        self.send(SMALL, SMALL, self.size - 2 * SMALL)

    async def leave(self) -> int:
        self._may_go.set()
        return await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


async def all_done() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def room_for_two(monkeypatch):
    monkeypatch.setattr(module, "CAPACITY", 2 * SIZE)


def test_one_without_room_is_not_read_until_there_is(room_for_two):
    async def run() -> None:
        intake = Intake(SIZE)
        senders = [Sender(intake) for _ in range(4)]
        for sender in senders:
            sender.send_all()
        await all_done()
        assert [sender.held.is_set() for sender in senders] == [True, True, False, False]
        assert [sender.num_sent for sender in senders[2:]] == [2 * SMALL] * 2 and intake.num_free == 0
        assert await senders[1].leave() == SIZE
        await all_done()
        assert [sender.held.is_set() for sender in senders] == [True, True, True, False]
        assert await asyncio.gather(*(sender.leave() for sender in senders)) == [SIZE] * 4
        assert intake.num_free == 2 * SIZE

    asyncio.run(run())


def test_small_bodies_need_no_room(room_for_two):
    async def run() -> None:
        intake = Intake(SIZE)
        large = [Sender(intake) for _ in range(3)]
        for sender in large:
            sender.send_all()
        small = Sender(intake, size=SMALL, declared=False)
        small.send(SMALL)
        await all_done()
        assert small.held.is_set() and not large[2].held.is_set()
        await asyncio.gather(*(sender.leave() for sender in (small, *large)))

    asyncio.run(run())


def test_one_of_unknown_length_takes_what_it_may_have_until_it_is_there(room_for_two):
    async def run() -> None:
        intake = Intake(SIZE)
        sender = Sender(intake, size=2 * SMALL, declared=False)
        sender.send(SMALL, SMALL // 2)
        await all_done()
        assert intake.num_free == SIZE
        sender.send(SMALL // 2)
        await all_done()
        assert sender.held.is_set() and intake.num_free == 2 * SIZE - 2 * SMALL
        await sender.leave()

    asyncio.run(run())


def test_room_is_given_back_however_it_ends(room_for_two):
    async def run() -> None:
        intake = Intake(SIZE)
        reading, held, waiting = (Sender(intake) for _ in range(3))
        reading.send(SMALL, SMALL)
        held.send_all()
        waiting.send_all()
        await all_done()
        for sender in (waiting, reading, held):
            await sender.cancel()
        assert intake.num_free == 2 * SIZE
        after = Sender(intake)
        after.send_all()
        assert await after.leave() == SIZE

    asyncio.run(run())


def test_slow_ones_make_room_for_others_but_only_for_them(room_for_two, monkeypatch):
    monkeypatch.setattr(module, "SLOW_S", 0.02)

    async def run() -> None:
        intake = Intake(SIZE)
        oldest, slow = Sender(intake), Sender(intake)
        for sender in (oldest, slow):
            sender.send(SMALL, SMALL)
        await asyncio.sleep(0.05)
        assert not oldest.task.done()  # no other body waits
        quick = Sender(intake)
        quick.send_all()
        assert await asyncio.wait_for(quick.leave(), 5) == SIZE
        with pytest.raises(Busy, match="too slowly"):
            await oldest.task
        slow.send(2 * SMALL)
        assert await slow.leave() == SIZE

    asyncio.run(run())


def test_those_that_are_worked_on_are_never_sent_away(room_for_two, monkeypatch):
    monkeypatch.setattr(module, "SLOW_S", 0.01)
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)

    async def run() -> None:
        intake = Intake(SIZE)
        holders = [Sender(intake), Sender(intake)]
        late = Sender(intake)
        for sender in (*holders, late):
            sender.send_all()
        with pytest.raises(Busy, match="room"):
            await late.task
        assert await asyncio.gather(*(sender.leave() for sender in holders)) == [SIZE] * 2

    asyncio.run(run())


def test_not_more_than_so_many_wait(room_for_two, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 1)

    async def run() -> None:
        intake = Intake(SIZE)
        senders = [Sender(intake) for _ in range(4)]
        for sender in senders:
            sender.send_all()
        with pytest.raises(Busy, match="too many"):
            await senders[3].task
        assert await asyncio.gather(*(sender.leave() for sender in senders[:3])) == [SIZE] * 3

    asyncio.run(run())


def test_one_larger_than_the_room_has_it_to_itself(monkeypatch):
    monkeypatch.setattr(module, "CAPACITY", SIZE)

    async def run() -> None:
        intake = Intake(9 * SIZE)
        senders = [Sender(intake, size=9 * SIZE), Sender(intake)]
        for sender in senders:
            sender.send_all()
        await all_done()
        assert [sender.held.is_set() for sender in senders] == [True, False]
        assert await asyncio.gather(*(sender.leave() for sender in senders)) == [9 * SIZE, SIZE]

    asyncio.run(run())
