"""The gateway: sessions over WebSocket, with what they missed while they were away."""

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web
from tests.discord.local.payloads import user_json
from tests.discord.local.world import Channel

__all__ = ["INTENTS", "PRIVILEGED", "Gateway", "Session"]

INTENTS = {
    "guilds": 1 << 0,
    "members": 1 << 1,
    "presences": 1 << 8,
    "guild_messages": 1 << 9,
    "guild_reactions": 1 << 10,
    "guild_typing": 1 << 11,
    "dm_messages": 1 << 12,
    "dm_reactions": 1 << 13,
    "dm_typing": 1 << 14,
    "message_content": 1 << 15,
}
PRIVILEGED = ("members", "presences", "message_content")
DISPATCH, HEARTBEAT, IDENTIFY, PRESENCE, RESUME, RECONNECT, REQUEST_MEMBERS, INVALID, HELLO, ACK = (
    0,
    1,
    2,
    3,
    6,
    7,
    8,
    9,
    10,
    11,
)
UNKNOWN_OPCODE, DECODE_ERROR, NOT_AUTHENTICATED, BAD_TOKEN, TWICE, BAD_SEQUENCE = 4001, 4002, 4003, 4004, 4005, 4007
TOO_FAST, TIMED_OUT, DISALLOWED_INTENTS = 4008, 4009, 4014
MAX_EVENTS, WINDOW_S = 120, 60.0  # from a client over one connection
MAX_KEPT = 4_000  # events that a session can be resumed over


@dataclass(eq=False)
class Session:
    """What was agreed on with a client, and what it was sent; outlives its connections."""

    id: str
    intents: int
    sequence: int = 0
    sent: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=MAX_KEPT), repr=False)
    connection: "Connection | None" = None
    left_s: float = 0.0  # when its last connection ended

    @property
    def sees_content(self) -> bool:
        return bool(self.intents & INTENTS["message_content"])

    def dispatch(self, event: str, data: Any) -> None:
        """Send an event now, or when the client is back."""
        self.sequence += 1
        frame = json.dumps({"op": DISPATCH, "t": event, "s": self.sequence, "d": data}, ensure_ascii=False)
        self.sent.append((self.sequence, frame))
        if self.connection is not None:
            self.connection.queue.put_nowait(frame)


@dataclass(eq=False)
class Connection:
    """One WebSocket of a client."""

    socket: web.WebSocketResponse
    queue: "asyncio.Queue[str | int | None]" = field(default_factory=asyncio.Queue)  # frames; a number closes
    session: Session | None = None
    beaten_s: float = 0.0
    events: deque[float] = field(default_factory=deque)

    def send(self, op: int, data: Any = None) -> None:
        self.queue.put_nowait(json.dumps({"op": op, "d": data, "s": None, "t": None}))


@dataclass(eq=False)
class Gateway:
    """All sessions of the bot. `hub` says who the bot is and which intents its portal allows."""

    hub: Any
    heartbeat_s: float = 41.25
    identify_every_s: float = 0.0  # Discord's is 5: a sooner one is answered with an invalid session
    max_identifies: int = 1_000  # a day; one more resets the token
    resume_s: float = 90.0  # for which a session can be resumed; Discord does not say how long
    identified: list[float] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    connections: set[Connection] = field(default_factory=set)
    resumed: int = 0

    def dispatch(
        self, event: str, data: Callable[[Session], Any] | Any, *intents: str, channel: Channel | None = None
    ) -> None:
        """Send an event to every session that has one of the intents and may see the channel."""
        if channel is not None and not self.hub.sees(channel):
            return
        wanted = sum(INTENTS[name] for name in intents)
        made: dict[bool, Any] = {}
        for session in self.living():
            if wanted and not session.intents & wanted:
                continue
            sees = session.sees_content
            if sees not in made:
                made[sees] = data(session) if callable(data) else data
            session.dispatch(event, made[sees])

    def living(self) -> list[Session]:
        """The sessions that are connected, or were a short while ago; the others are dropped."""
        since = self.hub.clock() - self.resume_s
        self.sessions = {key: one for key, one in self.sessions.items() if one.connection or one.left_s > since}
        return list(self.sessions.values())

    def cut(self, code: int | None = None) -> int:
        """Break every connection: in silence, or with a close code. Sessions can be resumed. Returns how many."""
        connections = list(self.connections)
        for connection in connections:
            self.leave(connection)
            if code is None:
                transport = connection.socket._req.transport if connection.socket._req else None
                if transport is not None:
                    transport.abort()
            else:
                connection.queue.put_nowait(code)
        return len(connections)

    def reconnect(self) -> None:
        """Ask every client to connect again and to resume."""
        for connection in self.connections:
            connection.send(RECONNECT)

    def invalidate(self, *, resumable: bool = False) -> None:
        """Tell every client that its session is invalid; it identifies again, unless it may resume."""
        for connection in self.connections:
            if connection.session is not None and not resumable:
                self.sessions.pop(connection.session.id, None)
            connection.send(INVALID, resumable)

    def forget(self) -> None:
        """Drop all sessions, so that none can be resumed."""
        self.sessions.clear()

    def leave(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if connection.session is not None and connection.session.connection is connection:
            connection.session.connection = None
            connection.session.left_s = self.hub.clock()

    async def handle(self, request: web.Request) -> web.WebSocketResponse:
        """Serve a WebSocket until either side closes it. Text frames only, whatever compression is asked for."""
        await self.hub.faults.wait()
        socket = web.WebSocketResponse(compress=False, max_msg_size=4_096 * 4, autoping=True)
        await socket.prepare(request)
        connection = Connection(socket, beaten_s=asyncio.get_running_loop().time())
        self.connections.add(connection)
        connection.send(HELLO, {"heartbeat_interval": int(self.heartbeat_s * 1000), "_trace": []})
        tasks = [asyncio.create_task(self.write(connection)), asyncio.create_task(self.watch(connection))]
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT or (code := self.receive(connection, message.data)) is None:
                    continue
                connection.queue.put_nowait(code)
        finally:
            self.leave(connection)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.hub.journal.changed()
        return socket

    async def write(self, connection: Connection) -> None:
        """Send what is queued, in order."""
        with suppress(ConnectionError):
            while True:
                item = await connection.queue.get()
                await self.hub.faults.wait()
                if isinstance(item, int):
                    self.leave(connection)
                    await connection.socket.close(code=item)
                    return
                if item is not None:
                    await connection.socket.send_str(item)

    async def watch(self, connection: Connection) -> None:
        """Close a connection whose heartbeats stay out."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.heartbeat_s / 4)
            if loop.time() > connection.beaten_s + 1.5 * self.heartbeat_s:
                self.hub.violate("heartbeats stayed out")
                connection.queue.put_nowait(TIMED_OUT)
                return

    def receive(self, connection: Connection, text: str) -> int | None:
        """Take a frame of the client; returns the code to close with, if it is wrong."""
        now = asyncio.get_running_loop().time()
        events = connection.events
        events.append(now)
        while events[0] < now - WINDOW_S:
            events.popleft()
        if len(events) > MAX_EVENTS:
            self.hub.violate("more than 120 gateway events in 60 s")
            return TOO_FAST
        try:
            frame = json.loads(text)
            op, data = frame["op"], frame.get("d")
        except (ValueError, KeyError, TypeError):
            return DECODE_ERROR
        if op == HEARTBEAT:
            connection.beaten_s = now
            connection.send(ACK)
        elif op == IDENTIFY:
            return self.identify(connection, data)
        elif op == RESUME:
            return self.resume(connection, data)
        elif connection.session is None:
            return NOT_AUTHENTICATED
        elif op == REQUEST_MEMBERS:
            self.send_members(connection.session, data)
        elif op not in (PRESENCE, 4):
            return UNKNOWN_OPCODE
        return None

    def identify(self, connection: Connection, data: dict[str, Any]) -> int | None:
        """Start a session: READY, then a GUILD_CREATE for each server."""
        now = asyncio.get_running_loop().time()
        if connection.session is not None:
            return TWICE
        if data.get("token") != self.hub.token:
            return BAD_TOKEN
        intents = int(data.get("intents", 0))
        if any(intents & INTENTS[name] and name not in self.hub.allowed_intents for name in PRIVILEGED):
            return DISALLOWED_INTENTS
        if self.identified and now < self.identified[-1] + self.identify_every_s:
            connection.send(INVALID, False)
            return None
        self.identified.append(now)
        if len(self.identified) > self.max_identifies:
            self.hub.reset_token()
            self.hub.violate("more than 1,000 identifies a day: the token is reset")
            return BAD_TOKEN
        session = Session(secrets.token_hex(16), intents, connection=connection)
        connection.session = session
        self.sessions[session.id] = session
        session.dispatch("READY", self.ready(session, data))
        for guild in self.hub.guilds.values():
            session.dispatch("GUILD_CREATE", self.hub.guild_json(guild, session.intents))
        self.hub.journal.changed()
        return None

    def ready(self, session: Session, data: dict[str, Any]) -> dict[str, Any]:
        return {
            "v": 10,
            "user": {**user_json(self.hub.bot), "verified": True, "mfa_enabled": False, "flags": 0},
            "guilds": [{"id": str(guild), "unavailable": True} for guild in self.hub.guilds],
            "session_id": session.id,
            "session_type": "normal",
            "resume_gateway_url": self.hub.gateway_url,
            "application": {"id": str(self.hub.bot.id), "flags": self.hub.application_flags},
            "private_channels": [],
            "presences": [],
            "relationships": [],
            "user_settings": {},
            **({"shard": data["shard"]} if "shard" in data else {}),
        }

    def resume(self, connection: Connection, data: dict[str, Any]) -> int | None:
        """Take up a session again and send what it missed, or say that it cannot be."""
        if connection.session is not None:
            return TWICE
        if data.get("token") != self.hub.token:
            return BAD_TOKEN
        self.living()
        session = self.sessions.get(data.get("session_id", ""))
        after = data.get("seq")
        if session is None or after is None:
            connection.send(INVALID, False)
            return None
        if after > session.sequence:
            return BAD_SEQUENCE
        missed = [(number, frame) for number, frame in session.sent if number > after]
        if len(missed) != session.sequence - after:  # too long away
            del self.sessions[session.id]
            connection.send(INVALID, False)
            return None
        if session.connection is not None:
            session.connection.queue.put_nowait(TIMED_OUT)
        session.connection, connection.session = connection, session
        for _, frame in missed:
            connection.queue.put_nowait(frame)
        session.dispatch("RESUMED", {"_trace": []})
        self.resumed += 1
        self.hub.journal.changed()
        return None

    def send_members(self, session: Session, data: dict[str, Any]) -> None:
        """Answer a request for members in one chunk."""
        found = self.hub.members_json(int(data["guild_id"]), data.get("query"), data.get("user_ids"))
        session.dispatch(
            "GUILD_MEMBERS_CHUNK",
            {
                "guild_id": str(data["guild_id"]),
                "members": found,
                "chunk_index": 0,
                "chunk_count": 1,
                "not_found": [],
                **({"nonce": data["nonce"]} if data.get("nonce") else {}),
            },
        )
