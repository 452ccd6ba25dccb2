"""The local Discord's gateway under the real discord.py: sessions that are cut, resumed, ended, refused."""

import asyncio

import aiohttp
import pytest
from tests.discord.local.bot import Bot, at_work, meeting
from tests.discord.local.client import pointed_at
from tests.discord.server import local_discord

import discord


async def heard(local, bot, count):
    await local.journal.until(lambda: len(bot.heard) >= count, what=f"{count} messages")
    return [one.content.split()[-1] for one in bot.heard]


@pytest.mark.parametrize("how", ["cut", "close", "reconnect", "resumable"])
def test_what_was_missed_is_sent_again(how):
    async def go():
        async with meeting() as (local, bot):
            local.say("general", "ann", "before", mention=True)
            await heard(local, bot, 1)
            gateway = local.gateway
            {
                "cut": gateway.cut,
                "close": lambda: gateway.cut(1001),
                "reconnect": gateway.reconnect,
                "resumable": lambda: gateway.invalidate(resumable=True),
            }[how]()
            for text in ("one", "two"):
                local.say("general", "ann", text, mention=True)
            assert await heard(local, bot, 3) == ["before", "one", "two"]
            await local.journal.until(lambda: "resumed" in bot.events)
            local.say("general", "ann", "after", mention=True)
            assert await heard(local, bot, 4) == ["before", "one", "two", "after"]
            assert (gateway.resumed, len(gateway.identified)) == (1, 1)

    asyncio.run(go())


class Eager(Bot):
    """Identifies again at once, where discord.py waits 5 s."""

    async def before_identify_hook(self, shard_id, *, initial=False):
        pass


def test_an_ended_session_is_begun_again():
    async def go():
        async with local_discord() as local, at_work(local, Eager()) as bot:
            local.gateway.invalidate()
            local.say("general", "ann", "missed", mention=True)
            await local.journal.until(lambda: len(local.gateway.identified) == 2)
            local.say("general", "ann", "after", mention=True)
            assert await heard(local, bot, 1) == ["after"]
            local.gateway.forget()
            local.gateway.cut()
            await local.journal.until(lambda: len(local.gateway.identified) == 3)
            local.gateway.cut()
            local.clock.ahead_s += 91  # too long away
            await local.journal.until(lambda: len(local.gateway.identified) == 4)
            assert local.gateway.resumed == 0 and len(local.gateway.sessions) == 1

    asyncio.run(go())


def test_intents_that_the_portal_does_not_allow():
    async def go(allowed):
        async with local_discord(allowed_intents=allowed) as local:
            intents = discord.Intents.default()
            intents.message_content = True
            with pointed_at(local.url):
                async with Bot(intents) as bot:
                    await bot.start(local.token)

    with pytest.raises(discord.PrivilegedIntentsRequired):
        asyncio.run(go(()))


def test_a_token_that_is_wrong_only_at_the_gateway():
    async def go():
        async with local_discord() as local:
            bot = Bot()
            with pointed_at(local.url):
                await bot.login(local.token)
                local.reset_token()
                with pytest.raises(discord.ConnectionClosed) as caught:
                    await bot.connect()
            assert caught.value.code == 4004
            await bot.close()

    asyncio.run(go())


def test_a_day_has_so_many_logins():
    async def go():
        async with local_discord() as local:
            local.gateway.max_identifies = 1
            async with at_work(local, Bot()) as bot:
                limit = (await bot.http.request(discord.http.Route("GET", "/gateway/bot")))["session_start_limit"]
                assert (limit["total"], limit["remaining"]) == (1, 0)
                local.gateway.forget()
                local.gateway.cut()
                second, token = Bot(), local.token
                await second.login(token)
                with pytest.raises(discord.ConnectionClosed):
                    await second.connect()
                await second.close()
                assert local.token != token and "identifies" in local.violations()[0]

    asyncio.run(go())


def test_logins_that_come_too_soon_wait():
    async def go():
        async with local_discord() as local:
            local.gateway.identify_every_s = 0.3
            async with at_work(local, Eager()):
                local.gateway.invalidate()
                await local.journal.until(lambda: len(local.gateway.identified) == 2)
                first, second = local.gateway.identified
                assert second - first >= 0.3

    asyncio.run(go())


def test_heartbeats_keep_a_connection():
    async def go():
        async with local_discord() as local:
            local.gateway.heartbeat_s = 0.3
            async with at_work(local, Bot()) as bot:
                await asyncio.sleep(1)
                assert bot.latency < 0.5 and local.violations() == [] and "disconnect" not in bot.events
                bot.ws._keep_alive.stop()
                await local.journal.until(lambda: "resumed" in bot.events)
                assert local.violations() == ["heartbeats stayed out"]

    asyncio.run(go())


def test_frames_of_a_bad_client():
    async def go(frames):
        async with (
            local_discord() as local,
            aiohttp.ClientSession() as session,
            session.ws_connect(local.url + "/gateway/?v=10&encoding=json&compress=zlib-stream") as socket,
        ):
            assert (await socket.receive_json())["op"] == 10
            for frame in frames:
                await socket.send_str(frame)
            while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                pass
            return socket.close_code, message.type

    for frames, number in (
        (["no json"], 4002),
        (['{"op": 3, "d": {}}'], 4003),
        (['{"op": 2, "d": {"token": "wrong"}}'], 4004),
        (['{"op": 1, "d": null}'] * 121, 4008),
    ):
        assert asyncio.run(go(frames))[0] == number


def test_a_freeze_ends():
    async def go():
        async with meeting() as (local, bot):
            local.faults.freeze(0.3)
            local.say("general", "ann", "hello", mention=True)
            loop = asyncio.get_running_loop()
            begin = loop.time()
            await bot.text_channel().send("x")
            assert loop.time() - begin >= 0.25
            assert await heard(local, bot, 1) == ["hello"]

    asyncio.run(go())


def test_members_and_servers_that_come_later():
    async def go():
        async with local_discord(allowed_intents=("members",)) as local:
            local.person("ann")
            intents = discord.Intents.default()
            intents.members = True
            async with at_work(local, Bot(intents)) as bot:
                assert {one.name for one in bot.guilds[0].members} == {"ann", "eyas", "owner"}
                found = await bot.guilds[0].query_members("an", limit=5)
                assert [one.name for one in found] == ["ann"]
                second = local.add_guild("Second")
                local.channel("talk", second)
                await local.journal.until(lambda: "guild_channel_create" in bot.events)
                assert bot.get_guild(second.id).text_channels[0].name == "talk"

    asyncio.run(go())
