"""Desks: one a channel, given up when nothing of it is wanted any more."""

import asyncio

from tests.discord.server import local_discord
from tests.discord.support.bots import QUIET, at_work, final, on_duty, settings_file
from tests.discord.support.endpoint import Pause, WrittenEndpoint, words

from eyas.discord.conversation import Conversation
from eyas.discord.showing import desk
from eyas.discord.showing.desk import nonce_of


def test_desks_of_channels_in_which_nothing_is_answered_any_more_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(desk, "IDLE_S", 0.0)

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: ["Yes.", Pause(0.3 if messages[-1]["content"] == "Slow" else 0.0)])
        async with local_discord() as local, endpoint.serving():
            path = settings_file(tmp_path, endpoint.url, display=QUIET, limits={"answers_at_once": "none"})
            async with at_work(local, path) as bot:
                slow = local.say("slow", "ann", "Slow", mention=True)
                await local.journal.until(lambda: endpoint.num_running)
                for number in range(2):
                    await final(local, local.say(f"room-{number}", "ann", "Quick", mention=True))
                    await local.journal.until(lambda: len(bot.answering) <= 1)
                assert set(bot._desks) <= {local.channel("slow").id, local.channel("room-1").id}
                (reply,) = await final(local, slow)
                assert reply.content == "Yes."

    asyncio.run(go())


def test_a_nonce_is_short_and_another_one_for_each_try_of_a_day():
    largest = 2**64 - 1
    found = {nonce_of(largest, 19, number) for number in range(1_790_000_000, 1_790_000_000 + 86_400)}
    assert len(found) == 86_400 and max(map(len, found)) <= 25


def test_a_text_is_cut_into_messages_when_an_edit_may_go_not_with_each_piece(tmp_path, monkeypatch):
    cuts = []
    made = Conversation._made

    def counted(self):
        cuts.append(self.phase)
        return made(self)

    monkeypatch.setattr(Conversation, "_made", counted)
    text = "".join(f"Line {number}.\n" for number in range(400))

    async def go() -> None:
        endpoint = WrittenEndpoint(lambda messages: words(text, 0.002, size=10))
        async with on_duty(tmp_path, endpoint, display=QUIET) as local:
            question = local.say("general", "ann", "Well?", mention=True)
            found = await final(local, question)
            joined = "\n".join(one.content for one in found)
            assert joined.split() == text.split()
            num_edits = sum(one.name in ("edit", "send") for one in local.journal.requests)
            assert cuts.count("writing") <= 3 * num_edits + 3
            assert local.violations() == []

    asyncio.run(go())
