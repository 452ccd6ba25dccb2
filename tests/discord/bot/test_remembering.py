"""What of a conversation goes to the model: chains, threads and private channels, as they stand when a person asks."""

import asyncio
from base64 import b64encode
from typing import Any

import pytest
from tests.discord.server import local_discord
from tests.discord.support.bots import QUIET, at_work, final, on_duty, settings_file
from tests.discord.support.endpoint import Refuse, WrittenEndpoint

from eyas.discord.bot import reading

Messages = list[dict[str, Any]]


def said(messages: Messages) -> list[str]:
    """Turns as `role: text`."""
    return [f"{one['role']}: {one['content']}" for one in messages]


def echo(messages: Messages) -> list[str]:
    return [f"Answer to {messages[-1]['content'][-30:]}"]


def test_a_chain_of_replies_is_remembered_as_it_stands_now(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(echo)
        async with on_duty(tmp_path, endpoint, display=QUIET) as local:
            first = local.say("general", "ann", "One", mention=True)
            (one,) = await final(local, first)
            local.say("general", "ben", "Something else")
            second = local.say("general", "ann", "Two", reply_to=one)
            (two,) = await final(local, second)
            assert said(endpoint.asked[-1]["messages"]) == ["user: One", "assistant: Answer to One", "user: Two"]
            local.edit(first, f"<@{local.bot.id}> Uno")
            third = local.say("general", "ben", "Three", reply_to=two, mention=True)
            await final(local, third)
            assert said(endpoint.asked[-1]["messages"]) == [
                "user: Ann: Uno",
                "assistant: Answer to One",
                "user: Ann: Two",
                "assistant: Answer to Two",
                "user: Ben: Three",
            ]
            local.delete(first)
            await final(local, local.say("general", "ann", "Four", reply_to=two))
            assert said(endpoint.asked[-1]["messages"]) == [
                "user: Two",
                "assistant: Answer to Two",
                "user: Four",
            ]
            await local.answered(local.run("general", "ann", "forget"))
            await final(local, local.say("general", "ben", "Five", reply_to=two, mention=True))
            assert said(endpoint.asked[-1]["messages"]) == ["user: Five"]
            assert local.violations() == []

    asyncio.run(go())


@pytest.mark.slow
def test_private_channels_and_threads_are_remembered_whole(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(echo)
        async with local_discord(allowed_intents=("message_content",)) as local, endpoint.serving():
            path = settings_file(tmp_path, endpoint.url, message_content=True)
            async with at_work(local, path):
                where = local.dm("ann")
                await final(local, local.say(where, "ann", "One"))
                await final(local, local.say(where, "ann", "Two"))
                assert said(endpoint.asked[-1]["messages"]) == ["user: One", "assistant: Answer to One", "user: Two"]
                start = local.say("general", "ben", "Shall we?")
                thread = local.open_thread("general", "ben", "Talk", start)
                local.say(thread, "ben", "I think so.")
                await final(local, local.say(thread, "ann", "What now?", mention=True))
                assert said(endpoint.asked[-1]["messages"]) == [
                    "user: Ben: Shall we?",
                    "user: Ben: I think so.",
                    "user: Ann: What now?",
                ]

    asyncio.run(go())


@pytest.mark.slow
def test_the_oldest_turns_go_and_the_reply_says_how_many(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(echo)
        async with on_duty(tmp_path, endpoint, memory={"messages": 3, "tokens": 6000}) as local:
            reply = None
            for number in range(3):
                question = local.say("general", "ann", f"Number {number}", reply_to=reply, mention=reply is None)
                (reply,) = await final(local, question)
            assert said(endpoint.asked[-1]["messages"]) == [
                "user: Number 1",
                "assistant: Answer to Number 1",
                "user: Number 2",
            ]
            assert reply.content == (
                "Answer to Number 2\n-# · The oldest 2 messages of this conversation did not fit and were left out."
            )

    asyncio.run(go())


@pytest.mark.slow
def test_a_server_that_finds_it_too_long_is_asked_for_less(tmp_path):
    """With both numbers where the question alone is too long."""

    def write(messages: Messages) -> list[Any]:
        size = sum(len(one["content"]) for one in messages)
        if size <= 100:
            return echo(messages)
        return [Refuse(400, f"This model's maximum context length is 100 tokens, and the request has {size} tokens")]

    async def go() -> None:
        endpoint = WrittenEndpoint(write, context=None)
        async with local_discord() as local, endpoint.serving(), at_work(local, settings_file(tmp_path, endpoint.url)):
            (reply,) = await final(local, local.say("general", "ann", "a" * 60, mention=True))
            question = local.say("general", "ann", "b" * 60, reply_to=reply)
            (reply,) = await final(local, question)
            assert said(endpoint.asked[-1]["messages"]) == [f"user: {'b' * 60}"]
            assert "The oldest 2 messages of this conversation did not fit" in reply.content
            (reply,) = await final(local, local.say("general", "ann", "c" * 150, mention=True))
            assert reply.content == (
                "This question is too long for the model's context of 100 tokens: it has 150. "
                "Shorten it, or attach less."
            )

    asyncio.run(go())


def test_attached_texts_are_read_and_others_named(tmp_path):
    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Read."])
        async with local_discord() as local, endpoint.serving():
            more = {"hosts": ["127.0.0.1"], "max_size": "1KiB"}
            path = settings_file(tmp_path, endpoint.url, files=more, display=QUIET)
            async with at_work(local, path):
                files = {"a.py": b"print(1)", "b.zip": b"PK\x03\x04", "c.txt": b"x" * 2000}
                (reply,) = await final(local, local.say("general", "ann", "What?", mention=True, files=files))
                assert said(endpoint.asked[-1]["messages"]) == ["user: What?\n\nFile a.py:\nprint(1)"]
                assert reply.content.split("\n") == [
                    "Read.",
                    "-# · b.zip is not read: it is no text file.",
                    "-# · c.txt is not read: it is larger than 1.0 KiB.",
                ]

    asyncio.run(go())


def test_files_of_messages_that_do_not_go_on_are_not_read(tmp_path, monkeypatch):
    """A private channel gives a hundred messages, of which each may have ten files."""
    read = []
    real = reading.read_attachments

    async def counted(session, attached, *args, **options):
        read.extend(one.name for one in attached)
        return await real(session, attached, *args, **options)

    monkeypatch.setattr(reading, "read_attachments", counted)

    async def go() -> None:
        endpoint = WrittenEndpoint(echo)
        async with local_discord() as local, endpoint.serving():
            for number in range(5):
                local.say(local.dm("ann"), "ann", f"Number {number}", files={f"{number}.txt": b"words"})
            files, memory = {"hosts": ["127.0.0.1"]}, {"messages": 3, "tokens": 6000}
            path = settings_file(tmp_path, endpoint.url, display=QUIET, files=files, memory=memory)
            async with at_work(local, path):
                (reply,) = await final(local, local.say(local.dm("ann"), "ann", "Now?"))
                assert sorted(read) == ["3.txt", "4.txt"] and "The oldest 3 messages" in reply.content
                assert len(endpoint.asked[-1]["messages"]) == 3

    asyncio.run(go())


def test_images_go_on_to_the_model_where_it_takes_them(tmp_path):
    """And teach no estimate of tokens: their base64 is no text."""
    png = b"\x89PNG\r\n\x1a\n" + bytes(2000)

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Seen."])
        async with local_discord() as local, endpoint.serving():
            more = {"hosts": ["127.0.0.1"], "images": True, "max_image_size": "4KiB"}
            path = settings_file(tmp_path, endpoint.url, files=more, display=QUIET)
            async with at_work(local, path) as bot:
                files = {"a.png": png, "b.jpg": b"no image", "c.webp": bytes(5000), "d.txt": b"words"}
                (reply,) = await final(local, local.say("general", "ann", "What?", mention=True, files=files))
                (message,) = endpoint.asked[-1]["messages"]
                assert message["content"] == [
                    {"type": "text", "text": "What?\n\nFile d.txt:\nwords"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(png).decode()}"}},
                ]
                assert reply.content.split("\n") == [
                    "Seen.",
                    "-# · b.jpg is not read: it is no PNG, JPEG, GIF or WebP.",
                    "-# · c.webp is not read: it is larger than 4.0 KiB.",
                ]
                assert bot.answering._estimate(None).count("a" * 400) == 100
                await final(local, local.say("general", "ann", "And now?", reply_to=reply))
                assert [one["content"] for one in endpoint.asked[-1]["messages"]][1:] == ["Seen.", "And now?"]
                assert endpoint.asked[-1]["messages"][0] == message

    asyncio.run(go())


@pytest.mark.slow
def test_without_the_intent_it_says_once_what_it_cannot_see(tmp_path, caplog):
    async def go() -> None:
        endpoint = WrittenEndpoint(echo)
        async with local_discord() as local, endpoint.serving(), at_work(local, settings_file(tmp_path, endpoint.url)):
            (reply,) = await final(local, local.say("general", "ann", "One", mention=True))
            (hint,) = await final(local, local.say("general", "ann", "Two", reply_to=reply, ping=False))
            assert hint.content == "-# · I cannot read this reply. Switch its mention on, or mention me in it."
            assert len(endpoint.asked) == 1
            (hint,) = await final(local, local.say("general", "ann", mention=True))
            assert hint.content.startswith("-# · There is nothing to answer in this message.")

    with caplog.at_level("INFO"):
        asyncio.run(go())
    assert caplog.text.count("without the Message Content intent") == 1
