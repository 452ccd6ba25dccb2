"""The local Discord's limits and faults under the real discord.py: what a client can know, and what it does then."""

import asyncio
import time

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.discord.local.bot import Bot, at_work, meeting
from tests.discord.local.client import pointed_at
from tests.discord.local.limits import Limits, Rule
from tests.discord.server import local_discord

import discord


async def raw(local, method, path, **body):
    """A request of a client that knows no limits: status, headers, body."""
    url, headers = f"{local.url}/api/v10{path}", {"Authorization": f"Bot {local.token}"}
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body, headers=headers) as response:
        return response.status, response.headers, await response.json() if response.status != 204 else None


class Hands:
    """A clock that stands still until a test moves it."""

    def __init__(self, local):
        self.now = local.clock()
        local.limits.clock = self

    def __call__(self):
        return self.now


def test_discord_py_keeps_to_what_headers_say():
    async def go():
        async with local_discord() as local:
            local.limits.rules = {"send": Rule("send", 5, 0.3), "react": Rule("react", 1, 0.05)}
            async with at_work(local, Bot()) as bot:
                channel = bot.text_channel()
                begin = time.monotonic()
                sent = await asyncio.gather(*(channel.send(str(i)) for i in range(17)))
                assert time.monotonic() - begin >= 0.9  # 17 are four windows
                await asyncio.gather(*(sent[0].add_reaction(one) for one in "👀👍🎉"))
                assert local.violations() == []
                assert {one.status for one in local.journal.requests if one.name == "send"} == {200}

    asyncio.run(go())


def test_a_client_that_ignores_headers_is_refused_and_recorded():
    async def go():
        async with local_discord() as local:
            hands = Hands(local)
            local.limits.rules = {"send": Rule("send", 2, 0.6)}
            path = f"/channels/{local.channel('general').id}/messages"
            other = f"/channels/{local.channel('other').id}/messages"
            left = []
            for _ in range(2):
                status, headers, _ = await raw(local, "POST", path, content="x")
                left.append((status, headers["X-RateLimit-Remaining"], headers["X-RateLimit-Limit"]))
            assert left == [(200, "1", "2"), (200, "0", "2")]
            assert float(headers["X-RateLimit-Reset-After"]) == pytest.approx(0.6, abs=0.001)
            assert float(headers["X-RateLimit-Reset"]) == pytest.approx(hands.now + 0.6, abs=0.001)
            assert (await raw(local, "POST", path, content="on its way"))[0] == 429
            assert local.violations() == []
            hands.now += 0.2
            status, headers, body = await raw(local, "POST", path, content="x")
            assert status == 429 and headers["Via"] and body["global"] is False
            assert body["retry_after"] == pytest.approx(0.4, abs=0.002)
            assert headers["Content-Type"] == "application/json" and headers["X-RateLimit-Scope"] == "user"
            assert (await raw(local, "POST", other, content="x"))[0] == 200  # a bucket for each channel
            assert local.violations("limit") == [f"limit: send /api/v10{path}"]
            hands.now += body["retry_after"]
            assert (await raw(local, "POST", path, content="x"))[0] == 200
            assert len(local.violations()) == 1

    asyncio.run(go())


def test_windows_by_a_clock_of_the_test():
    now = [100.0]
    limits = Limits(lambda: now[0], {"send": Rule("send", 2, 5.0)}, per_second=3)

    def take(name="send", major="1"):
        limited = limits.take(name, major, counts_globally=True)
        limits.told(limited)
        return limited

    assert [take().retry_after_s for _ in range(2)] == [None, None]
    now[0] += 0.05
    assert (take().retry_after_s, take().violation) == (pytest.approx(4.95), None)  # might have been on its way
    now[0] += 0.1
    assert take().violation == "limit"
    assert take("send", "2").retry_after_s is None and take("other").is_global  # the fourth in a second
    assert take("other", "9").violation is None
    now[0] += 0.2
    assert take("other", "9").violation == "global"
    now[0] += 5.0
    assert take().retry_after_s is None


@given(
    rule=st.builds(Rule, st.just("send"), st.integers(1, 5), st.floats(0.1, 10.0)),
    pauses=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60),
)
def test_who_obeys_headers_is_never_refused_and_no_window_holds_more_than_its_limit(rule, pauses):
    now = [0.0]
    obeyed, ignored = (Limits(lambda: now[0], {"send": rule}, per_second=0) for _ in range(2))
    free_at, passed = 0.0, []
    for pause in pauses:
        now[0] += pause
        if now[0] >= free_at:
            limited = obeyed.take("send", "1", counts_globally=True)
            obeyed.told(limited)
            assert limited.retry_after_s is None
            if limited.headers["X-RateLimit-Remaining"] == "0":
                free_at = now[0] + float(limited.headers["X-RateLimit-Reset-After"])
        limited = ignored.take("send", "1", counts_globally=True)
        if limited.retry_after_s is None:
            passed.append(now[0])
        else:
            assert 0 < limited.retry_after_s <= rule.per_s + 1e-6
            assert int(limited.headers["X-RateLimit-Remaining"]) == 0
    while passed:
        inside = [at for at in passed if at < passed[0] + rule.per_s]
        assert len(inside) <= rule.limit
        passed = passed[len(inside) :]


def test_a_request_that_breaks_off_is_no_fault_of_the_server():
    async def go():
        async with local_discord() as local:
            host, port = local.url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            path = f"/api/v10/channels/{local.channel('general').id}/messages"
            writer.write(f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\n{{".encode())
            await local.journal.until(lambda: local.journal.requests)
            writer.transport.abort()
            assert (await raw(local, "GET", "/users/@me"))[0] == 200
            assert not local.channel("general").messages

    asyncio.run(go())


def test_fifty_requests_a_second():
    async def go():
        async with meeting() as (local, bot):
            hands = Hands(local)
            hands.now += 2
            found = await asyncio.gather(*(raw(local, "GET", "/users/@me") for _ in range(60)))
            refused = [(headers, body) for status, headers, body in found if status == 429]
            assert len(refused) == 10
            assert all(body["global"] and headers["X-RateLimit-Global"] == "true" for headers, body in refused)
            hands.now += refused[0][1]["retry_after"]
            await bot.text_channel().send("x")
            assert len(local.channel("general").messages) == 1

    asyncio.run(go())


def test_scripted_faults():
    async def go():
        async with meeting() as (local, bot):
            channel = bot.text_channel()
            local.fail("send", 429, retry_after_s=0.3)
            begin = time.monotonic()
            await channel.send("after a 429")
            assert time.monotonic() - begin >= 0.3
            local.fail("send", 503)
            with pytest.raises(discord.DiscordServerError):
                await channel.send("lost")
            local.fail("send", "reset")
            with pytest.raises(aiohttp.ClientError):
                await channel.send("lost")
            local.fail("send", "reset", after=True)
            with pytest.raises(aiohttp.ClientError):
                await channel.send("there", nonce="1")
            assert (await channel.send("there", nonce="1")).content == "there"
            local.fail("fetch", "slow", retry_after_s=0.2)
            begin = time.monotonic()
            await channel.fetch_message(next(iter(local.channel("general").messages)))
            assert time.monotonic() - begin >= 0.2
            local.fail("edit", 500)
            begin = time.monotonic()
            sent = await channel.send("old")
            await sent.edit(content="new")
            assert time.monotonic() - begin >= 1  # discord.py waits a second after a 500
            assert [one.content for one in local.channel("general").messages.values()] == [
                "after a 429",
                "there",
                "new",
            ]
            assert [one.status for one in local.journal.requests if one.name == "edit"] == [500, 200]

    asyncio.run(go())


def test_a_global_429_stops_everything_for_a_while():
    async def go():
        async with meeting() as (local, bot):
            local.limits.block(0.4)
            begin = time.monotonic()
            await bot.text_channel().send("x")
            assert time.monotonic() - begin >= 0.4
            assert local.violations() == []
            local.limits.block(10)
            local.limits.grace_s = 0.0
            assert [(await raw(local, "GET", "/users/@me"))[0] for _ in range(2)] == [429, 429]
            assert local.violations() == ["global: me /api/v10/users/@me"]

    asyncio.run(go())


def test_a_request_that_a_429_let_come_again_is_told_apart():
    async def go():
        async with local_discord() as local:
            local.limits.rules = {"send": Rule("send", 1, 60.0)}
            local.limits.grace_s = 0.0
            path = f"/channels/{local.channel('general').id}/messages"
            local.fail("send", 429, retry_after_s=0.1, is_global=True)
            assert (await raw(local, "POST", path, content="refused"))[0] == 429
            await asyncio.sleep(0.1)
            assert (await raw(local, "POST", path, content="first"))[0] == 200
            for text in ("refused", "new"):
                assert (await raw(local, "POST", path, content=text))[0] == 429
            assert [one.what for one in local.journal.violations] == ["again", "limit"]

    asyncio.run(go())


def test_a_wrong_token_is_refused_everywhere():
    async def go():
        async with local_discord() as local:
            local.token = "another"
            bot = Bot()
            with pointed_at(local.url), pytest.raises(discord.LoginFailure):
                await bot.login("wrong")
            await bot.close()
            assert [one.status for one in local.journal.requests] == [401]

    asyncio.run(go())
