"""The local Discord under the real discord.py: messages, their states, files, reactions, threads, permissions."""

import asyncio
import io
import os
import sys

import aiohttp
import pytest
from tests.discord.local.bot import Bot, at_work, meeting
from tests.discord.local.people import NotPossible
from tests.discord.local.process import ROOT, discord_process
from tests.discord.server import local_discord

import discord


def code(caught):
    """Discord's number of the error."""
    return caught.value.code


def test_a_mention_is_answered_and_every_state_is_kept():
    async def go():
        async with local_discord() as local, at_work(local, Bot()) as bot:
            question = local.say("general", "ann", "hello", mention=True)
            heard = (await local.journal.until(lambda: bot.heard))[0]
            assert heard.content == f"<@{bot.user.id}> hello"
            assert heard.author.name == "ann" and heard.channel.name == "general" and heard.guild.name == "Lab"
            await heard.add_reaction("🤔")
            reply = await heard.reply("*Thinking*", mention_author=False)
            await reply.edit(content="  done\n")
            await heard.remove_reaction("🤔", bot.user)
            await heard.add_reaction("✅")
            (shown,) = local.replies(question)
            assert [(one.change, one.content) for one in shown.states] == [("sent", "*Thinking*"), ("edited", "done")]
            assert [one.emojis for one in question.states] == [(), ("🤔",), (), ("✅",)]
            assert shown.pinged == () and shown.reply_to is question
            times = [state.at_s for _, state in local.journal.states]
            assert times == sorted(times) and len(times) == 6
            await reply.delete()
            assert local.replies(question) == [] and shown.states[-1].change == "deleted"
            assert local.violations() == []
            names = [one.name for one in local.journal.requests if one.name not in ("me", "application")]
            assert names == ["react", "send", "edit", "unreact", "react", "delete"]
            assert {one.status for one in local.journal.requests} == {200, 204}

    asyncio.run(go())


def test_history_and_single_messages():
    async def go():
        async with meeting(allowed_intents=("message_content",)) as (local, bot):
            sent = [local.say("general", "ann", f"number {i}") for i in range(10)]
            channel = bot.text_channel()

            async def texts(**where):
                return [int(one.content.split()[1]) async for one in channel.history(**where)]

            at = discord.Object(sent[5].id)
            assert await texts(limit=3) == [9, 8, 7]
            assert await texts(limit=3, before=at) == [4, 3, 2]
            assert await texts(limit=3, after=at) == [6, 7, 8]
            assert await texts(limit=5, around=at) == [7, 6, 5, 4, 3]
            assert (await channel.fetch_message(sent[2].id)).content == "number 2"
            local.delete(sent[2])
            await local.journal.until(lambda: "raw_message_delete" in bot.events)
            with pytest.raises(discord.NotFound) as caught:
                await channel.fetch_message(sent[2].id)
            assert code(caught) == 10008

    asyncio.run(go())


@pytest.mark.parametrize("may_see", [False, True])
def test_content_is_hidden_without_the_intent(may_see):
    async def go():
        async with meeting(allowed_intents=("message_content",) if may_see else ()) as (local, bot):
            own = await bot.text_channel().send("mine")
            mine = local.guild.channels[own.channel.id].messages[own.id]
            plain = local.say("general", "ann", "plain", files={"a.txt": b"x"})
            local.say("general", "ben", "to you", mention=True, reply_to=plain)
            local.say("general", "ann", "reply", reply_to=mine)
            local.say("general", "ann", "quiet reply", reply_to=mine, ping=False)
            local.say(local.dm("ann"), "ann", "private")
            await local.journal.until(lambda: len(bot.heard) == 5)
            plain_seen, mentioned, reply, quiet, private = bot.heard
            assert plain_seen.content == ("plain" if may_see else "")
            assert len(plain_seen.attachments) == may_see
            assert mentioned.content.endswith("to you")
            assert mentioned.reference.resolved.content == ("plain" if may_see else "")
            assert (reply.content, reply.reference.resolved.content) == ("reply", "mine")
            assert quiet.content == ("quiet reply" if may_see else "")
            assert private.content == "private" and private.guild is None
            assert (await bot.text_channel().fetch_message(plain.id)).content == ("plain" if may_see else "")

    asyncio.run(go())


def test_edits_deletions_and_reactions_of_people():
    async def go():
        async with meeting() as (local, bot):
            asked = local.say("general", "ann", "one", mention=True)
            await local.journal.until(lambda: bot.heard)
            edited, reacted = [], []

            @bot.event
            async def on_raw_message_edit(payload):
                edited.append(payload.message.content)

            @bot.event
            async def on_raw_reaction_add(payload):
                reacted.append((str(payload.emoji), payload.member.name))

            local.edit(asked, f"<@{bot.user.id}> two")
            local.react(asked, "👍", "ben")
            await local.journal.until(lambda: edited and reacted)
            assert edited == [f"<@{bot.user.id}> two"] and reacted == [("👍", "ben")]
            message = await bot.text_channel().fetch_message(asked.id)
            assert message.edited_at is not None and message.reactions[0].count == 1
            with pytest.raises(discord.Forbidden) as caught:
                await message.remove_reaction("👍", discord.Object(local.person("ben").id))
            assert code(caught) == 50013
            local.grant(local.bot, local.role("helper", "manage_messages"))
            await message.remove_reaction("👍", discord.Object(local.person("ben").id))
            assert asked.states[-1].change == "unreacted" and asked.reactions == {}

    asyncio.run(go())


def test_files_go_both_ways():
    async def go():
        async with meeting() as (local, bot):
            local.say("general", "ann", "read", mention=True, files={"notes.txt": "naïve".encode(), "a b.png": b"\x89"})
            heard = (await local.journal.until(lambda: bot.heard))[0]
            assert [one.filename for one in heard.attachments] == ["notes.txt", "a b.png"]
            assert [one.content_type for one in heard.attachments] == ["text/plain; charset=utf-8", "image/png"]
            assert (await heard.attachments[0].read()).decode() == "naïve"
            assert heard.attachments[1].size == 1 and await heard.attachments[1].read() == b"\x89"
            reply = await heard.reply("here", files=[discord.File(io.BytesIO(b"# rest"), "rest.md")])
            stored = local.guild.channels[reply.channel.id].messages[reply.id]
            assert [(one.name, one.data) for one in stored.attachments] == [("rest.md", b"# rest")]
            await reply.add_files(discord.File(io.BytesIO(b"2"), "two.md"))
            assert stored.states[-1].files == ("rest.md", "two.md")
            await reply.edit(attachments=[])
            assert stored.states[-1].files == () and stored.content == "here"
            url = str(heard.attachments[0].url)
            local.delete(local.guild.channels[reply.channel.id].messages[heard.id])
            async with aiohttp.ClientSession() as session, session.get(url) as response:
                assert response.status == 404

    asyncio.run(go())


def test_nobody_is_pinged_who_is_not_allowed():
    async def go():
        async with meeting() as (local, bot):
            ann, staff = local.person("ann"), local.role("staff")
            local.permit("general", "mention_everyone")
            text = f"<@{ann.id}> <@&{staff.id}> @everyone"
            question = local.say("general", "ben", "hi", mention=True)
            heard = (await local.journal.until(lambda: bot.heard))[0]
            none, users = discord.AllowedMentions.none(), discord.AllowedMentions.none()
            users.users = True
            for allowed in (None, none, users):
                await heard.reply(text, allowed_mentions=allowed)
            assert [one.pinged for one in local.replies(question)] == [
                ("ann", "ben", "staff", "everyone"),
                (),
                ("ann",),
            ]

    asyncio.run(go())


def test_threads():
    async def go():
        async with meeting() as (local, bot):
            start = local.say("general", "ann", "start", mention=True)
            thread = local.open_thread("general", "ann", "talk", start)
            await local.journal.until(lambda: "thread_create" in bot.events)
            seen = bot.get_channel(thread.id)
            assert isinstance(seen, discord.Thread) and seen.parent.name == "general" and seen.me is None
            await seen.join()
            local.say(thread, "ann", "inside", mention=True)
            heard = (await local.journal.until(lambda: [one for one in bot.heard if one.channel == seen]))[0]
            await heard.reply("in the thread")
            assert [one.content for one in thread.messages.values()][-1] == "in the thread"
            own = await (await bot.text_channel().fetch_message(start.id)).channel.create_thread(
                name="mine", message=None
            )
            assert own.owner_id == bot.user.id and own.type is discord.ChannelType.private_thread

    asyncio.run(go())


def test_private_conversation_opened_by_the_bot():
    async def go():
        async with meeting() as (local, bot):
            user = await bot.fetch_user(local.person("ann").id)
            await user.send("psst")
            assert [one.content for one in local.dm("ann").messages.values()] == ["psst"]
            local.closed.add(local.person("ann"))
            with pytest.raises(discord.Forbidden) as caught:
                await user.send("more")
            assert code(caught) == 50007 and local.invalid_requests() == 1

    asyncio.run(go())


def test_permissions_by_channel():
    async def go():
        async with meeting() as (local, bot):
            local.channel("quiet")
            local.forbid("quiet", "send_messages")
            local.channel("secret")
            local.forbid("secret", "view_channel")
            await local.journal.until(lambda: "guild_channel_delete" in bot.events)
            quiet = bot.text_channel("quiet")
            assert not quiet.permissions_for(quiet.guild.me).send_messages
            with pytest.raises(discord.Forbidden) as caught:
                await quiet.send("no")
            assert code(caught) == 50013
            asked = local.say("secret", "ann", "hidden", mention=True)
            with pytest.raises(discord.Forbidden) as caught:
                await bot.http.get_message(asked.channel.id, asked.id)
            assert code(caught) == 50001
            for name, number, call in (
                ("add_reactions", 50013, lambda one: one.add_reaction("👍")),
                ("attach_files", 50013, lambda one: one.reply(file=discord.File(io.BytesIO(b""), "a"))),
                ("read_message_history", 160002, lambda one: one.reply("text")),
            ):
                question = local.say("general", "ann", name, mention=True)
                heard = await local.journal.until(lambda key=question.id: bot._connection._get_message(key))
                local.forbid("general", name)
                with pytest.raises(discord.HTTPException) as caught:
                    await call(heard)
                assert code(caught) == number
                local.permit("general", name)
                await call(heard)
            with pytest.raises(discord.Forbidden) as caught:
                await bot.http.edit_message(
                    heard.channel.id, heard.id, params=discord.http.handle_message_parameters("x")
                )
            assert code(caught) == 50005
            with pytest.raises(NotPossible, match="ben may not send_messages in general"):
                local.forbid("general", "send_messages", who=local.person("ben"))
                local.say("general", "ben", "no")

    asyncio.run(go())


def test_a_channel_that_is_deleted():
    async def go():
        async with meeting() as (local, bot):
            gone = local.channel("gone")
            await local.journal.until(lambda: "guild_channel_create" in bot.events)
            channel = bot.text_channel("gone")
            local.remove_channel(gone)
            with pytest.raises(discord.NotFound) as caught:
                await channel.send("x")
            assert code(caught) == 10003
            await local.journal.until(lambda: "guild_channel_delete" in bot.events)

    asyncio.run(go())


LONG = "😀" * 1001  # 2,002 UTF-16 units
EMBEDS = [discord.Embed(description="x" * 3001), discord.Embed(title="t", description="y" * 2999)]


@pytest.mark.parametrize(
    ("number", "fields"),
    [
        (50035, {"content": "x" * 2001}),
        (50035, {"content": LONG}),
        (50006, {"content": " \n "}),
        (50035, {"embeds": EMBEDS}),
        (50035, {"content": "x", "nonce": "n" * 26}),
        (40005, {"file": lambda: discord.File(io.BytesIO(b"x" * ((10 << 20) + 1)), "large")}),
        (None, {"content": "x" * 2000}),
        (None, {"content": LONG[:1000]}),
        (None, {"embeds": [discord.Embed(description="x" * 4096)], "nonce": "n" * 25}),
        (None, {"file": lambda: discord.File(io.BytesIO(b"x" * (10 << 20)), "large")}),
    ],
)
def test_sizes(number, fields):
    async def go():
        async with meeting() as (local, bot):
            made = {name: value() if callable(value) else value for name, value in fields.items()}
            if number is None:
                await bot.text_channel().send(**made)
                return
            with pytest.raises(discord.HTTPException) as caught:
                await bot.text_channel().send(**made)
            assert code(caught) == number
            assert not local.channel("general").messages

    asyncio.run(go())


def test_an_error_says_where():
    async def go():
        async with meeting() as (_, bot):
            with pytest.raises(discord.HTTPException, match="In content: Must be 2000 or fewer in length"):
                await bot.text_channel().send("x" * 2001)
            gone = discord.MessageReference(message_id=1, channel_id=bot.text_channel().id)
            with pytest.raises(discord.HTTPException, match="In message_reference: Unknown message"):
                await bot.text_channel().send("x", reference=gone)
            gone.fail_if_not_exists = False
            await bot.text_channel().send("x", reference=gone)
            with pytest.raises(discord.NotFound) as caught:
                await bot.fetch_channel(1)
            assert code(caught) == 10003
            with pytest.raises(discord.NotFound, match="404: Not Found"):
                await bot.http.request(discord.http.Route("GET", "/nowhere"))

    asyncio.run(go())


def test_a_nonce_is_sent_once():
    async def go():
        async with meeting() as (local, bot):
            first = await bot.text_channel().send("x", nonce="same")
            again = await bot.text_channel().send("x", nonce="same")
            assert again.id == first.id and len(local.channel("general").messages) == 1
            local.clock.ahead_s += 301
            assert (await bot.text_channel().send("x", nonce="same")).id != first.id

    asyncio.run(go())


def test_typing_shows_until_a_message_comes():
    async def go():
        async with meeting() as (local, bot):
            channel = local.channel("general")
            async with bot.text_channel().typing():
                assert local.is_typing(channel, local.bot)
            local.clock.ahead_s += 11
            assert not local.is_typing(channel, local.bot)
            await bot.text_channel().typing()
            await bot.text_channel().send("x")
            assert not local.is_typing(channel, local.bot)

    asyncio.run(go())


def test_in_a_process_of_its_own():
    async def go():
        async with discord_process("--message-content") as remote:
            intents = discord.Intents.default()
            intents.message_content = True

            class There:
                url, token = remote.url, "local.bot.token"

            async with at_work(There, Bot(intents)) as bot:
                asked = await remote.do("say", channel="general", author="ann", text="hello")
                while not bot.heard:
                    await asyncio.sleep(0.01)
                await bot.heard[0].reply("there")
                await remote.do("react", message=asked["id"], author="ben", emoji="👍")
                assert [one["content"] for one in await remote.do("replies", message=asked["id"])] == ["there"]
                changes = [one["change"] for one in await remote.do("states", message=asked["id"])]
                assert changes == ["sent", "reacted"]
                assert [one["author"] for one in (await remote.view())["messages"]] == ["ann", "eyas"]
                with pytest.raises(RuntimeError, match="no message 1"):
                    await remote.do("press", message="1", author="ann", button="Stop")

    asyncio.run(go())


BOT = """
import discord, sys
bot = discord.Client(intents=discord.Intents.default())
@bot.event
async def on_message(message):
    if message.author != bot.user:
        await message.reply(message.content.split()[-1])
bot.run(sys.argv[1], log_handler=None)
"""


def test_a_bot_in_a_process_of_its_own_is_killed(tmp_path):
    (tmp_path / "small_bot.py").write_text(BOT)

    async def go():
        async with local_discord() as local:
            command = [sys.executable, "-m", "tests.discord.local.client", local.url, "small_bot", local.token]
            paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
            bot = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=paths)
            try:
                await local.journal.until(lambda: local.gateway.sessions, 20)
                question = local.say("general", "ann", "hello", mention=True)
                (reply,) = await local.journal.until(lambda: local.replies(question))
                assert reply.content == "hello"
                assert local.gateway.connections
            finally:
                bot.kill()
                await bot.wait()
            await local.journal.until(lambda: not local.gateway.connections)
            (session,) = local.gateway.sessions.values()
            kept = session.sequence
            local.say("general", "ann", "anyone?", mention=True)
            assert session.sequence == kept + 1  # what it misses waits for it

    asyncio.run(go())
