"""The local Discord's interactions under the real discord.py: commands, completion, buttons, times, tokens."""

import asyncio
import io
from contextlib import asynccontextmanager

import pytest
from tests.discord.local.bot import meeting
from tests.discord.local.people import NotPossible

import discord
from discord import app_commands


@asynccontextmanager
async def with_commands():
    """A bot with commands: one that answers, one that waits, one for managers, one with a group."""
    async with meeting() as (local, bot):
        tree = app_commands.CommandTree(bot)
        told = asyncio.Event()

        @tree.command(description="What runs")
        async def status(interaction: discord.Interaction) -> None:
            await interaction.response.send_message("well", ephemeral=True)

        @tree.command(description="Think for a while")
        async def think(interaction: discord.Interaction) -> None:
            await interaction.response.defer(thinking=True)
            await told.wait()
            await interaction.edit_original_response(content="thought")

        @tree.command(description="Choose the model")
        @app_commands.default_permissions(manage_channels=True)
        @app_commands.guild_only()
        async def model(interaction: discord.Interaction, name: str, count: int = 1) -> None:
            where = f"{interaction.channel.name} {interaction.permissions.manage_channels}"
            await interaction.response.send_message(f"{name} {count} {where}")

        @model.autocomplete("name")
        async def names(interaction: discord.Interaction, current: str) -> list[app_commands.Choice[str]]:
            return [app_commands.Choice(name=one.upper(), value=one) for one in ("big", "small") if current in one]

        group = app_commands.Group(name="memory", description="What is remembered")

        @group.command(description="Forget it")
        async def forget(interaction: discord.Interaction) -> None:
            await interaction.response.send_message("forgotten")

        tree.add_command(group)
        await tree.sync()
        yield local, bot, told


def test_commands_are_registered_and_used():
    async def go():
        async with with_commands() as (local, bot, _):
            assert [one["name"] for one in local.commands[None]] == ["status", "think", "model", "memory"]
            used = await local.answered(local.run("general", "ann", "status"))
            (private,) = used.replies
            assert private.content == "well" and private.only_for is local.person("ann")
            assert private not in local.channel("general").messages.values()
            assert private in local.visible(local.channel("general"), local.person("ann"))
            assert private not in local.visible(local.channel("general"), local.person("ben"))
            used = await local.answered(local.run("general", "ann", "memory forget"))
            assert used.replies[0] in local.channel("general").messages.values()
            used = await local.answered(local.run(local.dm("ann"), "ann", "status"))
            assert used.replies[0].content == "well" and bot.interactions[-1].guild is None

    asyncio.run(go())


def test_what_discord_does_not_offer_cannot_be_used():
    async def go():
        async with with_commands() as (local, _, _):
            with pytest.raises(NotPossible, match="ann is not offered /model in general"):
                local.run("general", "ann", "model", name="big")
            local.person("ann")
            local.grant("ann", local.role("boss", "manage_channels"))
            used = await local.answered(local.run("general", "ann", "model", name="big", count=2))
            assert used.replies[0].content == "big 2 general True"
            for where, name, options, why in (
                (local.dm("ann"), "model", {"name": "x"}, "not offered"),
                ("general", "model", {}, "needs"),
                ("general", "model", {"name": "x", "size": 1}, "no option"),
                ("general", "memory keep", {}, "no subcommand"),
                ("general", "gone", {}, "not offered"),
            ):
                with pytest.raises(NotPossible, match=why):
                    local.run(where, "ann", name, **options)

    asyncio.run(go())


def test_completion():
    async def go():
        async with with_commands() as (local, _, _):
            local.person("ann")
            local.grant("ann", local.role("boss", "manage_channels"))
            typed = await local.answered(local.complete("general", "ann", "model", "name", "s"))
            assert typed.choices == [{"name": "SMALL", "value": "small"}]

    asyncio.run(go())


def test_an_answer_that_comes_later():
    async def go():
        async with with_commands() as (local, bot, told):
            used = await local.answered(local.run("general", "ann", "think"))
            assert local.interactions.state(used) == "thinking"
            told.set()
            await local.journal.until(lambda: local.interactions.state(used) == "answered")
            (reply,) = used.replies
            assert [one.content for one in reply.states] == ["", "thought"]
            more = await bot.interactions[-1].followup.send("more", ephemeral=True, wait=True)
            assert [one.content for one in used.replies] == ["thought", "more"] and used.replies[1].only_for
            await more.edit(content="most")
            assert used.replies[1].content == "most"
            await bot.interactions[-1].delete_original_response()
            assert reply.is_deleted and reply.id not in local.channel("general").messages
            with pytest.raises(discord.NotFound) as caught:
                await bot.interactions[-1].original_response()
            assert caught.value.code == 10008

    asyncio.run(go())


def test_three_seconds_to_acknowledge_and_fifteen_minutes_for_the_token():
    async def go():
        async with meeting() as (local, bot):
            await bot.http.bulk_upsert_global_commands(bot.user.id, [{"name": "slow", "description": "waits"}])
            late = local.run("general", "ann", "slow")
            seen = (await local.journal.until(lambda: bot.interactions))[0]
            local.clock.ahead_s += 3.1
            with pytest.raises(discord.NotFound) as caught:
                await seen.response.defer()
            assert caught.value.code == 10062 and local.interactions.state(late) == "failed"
            assert len(local.violations()) == 1
            local.run("general", "ann", "slow")
            seen = (await local.journal.until(lambda: bot.interactions[1:]))[0]
            with pytest.raises(discord.NotFound) as caught:
                await seen.followup.send("too early")
            assert caught.value.code == 10015
            await seen.response.send_message("in time")
            again = bot._connection.http.request(
                discord.http.Route("POST", "/interactions/{a}/{b}/callback", a=seen.id, b=seen.token), json={"type": 5}
            )
            with pytest.raises(discord.HTTPException) as caught:
                await again
            assert caught.value.code == 40060
            local.clock.ahead_s += 14 * 60
            await seen.edit_original_response(content="still")
            local.clock.ahead_s += 61
            with pytest.raises(discord.HTTPException) as caught:
                await seen.edit_original_response(content="over")
            assert (caught.value.status, caught.value.code) == (401, 50027)
            message = next(iter(local.channel("general").messages.values()))
            assert message.content == "still"
            await bot.text_channel().get_partial_message(message.id).edit(content="as a plain message")
            assert message.content == "as a plain message"

    asyncio.run(go())


class Buttons(discord.ui.View):
    """Stop takes itself away, Why answers in private."""

    def __init__(self):
        super().__init__(timeout=None)

    @discord.ui.button(label="Stop", custom_id="stop")
    async def stop_it(self, interaction, button):
        await interaction.response.edit_message(content="stopped", view=None)

    @discord.ui.button(label="Why", custom_id="why")
    async def why(self, interaction, button):
        await interaction.response.send_message(
            "because", ephemeral=True, file=discord.File(io.BytesIO(b"long"), "why.md")
        )

    @discord.ui.button(label="Later", custom_id="later")
    async def later(self, interaction, button):
        await interaction.response.defer()

    @discord.ui.button(label="Off", custom_id="off", disabled=True)
    async def off(self, interaction, button): ...


def test_buttons():
    async def go():
        async with meeting() as (local, bot):
            sent = await bot.text_channel().send("running", view=Buttons())
            message = local.channel("general").messages[sent.id]
            assert message.states[0].buttons == ("Stop", "Why", "Later", "Off")
            why = await local.answered(local.press(message, "Why", "ann"))
            assert why.replies[0].content == "because" and why.replies[0].attachments[0].data == b"long"
            assert bot.interactions[0].user.name == "ann" and bot.interactions[0].message.id == sent.id
            later = await local.answered(local.press(message, "later", "ben"))
            assert later.replies == [] and later.original is message
            await bot.interactions[1].edit_original_response(content="later")
            assert message.content == "later"
            with pytest.raises(NotPossible, match="disabled"):
                local.press(message, "Off", "ann")
            stop = await local.answered(local.press(message, "Stop", "ann"))
            assert stop.replies == [] and message.content == "stopped" and message.buttons == []
            with pytest.raises(NotPossible, match="no button 'Stop'"):
                local.press(message, "Stop", "ann")
            assert local.violations() == []

    asyncio.run(go())


def test_buttons_of_a_message_that_only_one_person_sees():
    async def go():
        async with meeting() as (local, bot):
            sent = await bot.text_channel().send("running", view=Buttons())
            why = await local.answered(local.press(local.channel("general").messages[sent.id], "Why", "ann"))
            await bot.interactions[0].edit_original_response(view=Buttons())
            assert why.replies[0].states[-1].buttons[0] == "Stop"
            with pytest.raises(NotPossible, match="ben does not see"):
                local.press(why.replies[0], "Stop", "ben")
            await local.answered(local.press(why.replies[0], "Stop", "ann"))
            assert why.replies[0].content == "stopped"
            with pytest.raises(discord.NotFound) as caught:
                await bot.text_channel().fetch_message(why.replies[0].id)
            assert caught.value.code == 10008

    asyncio.run(go())


@pytest.mark.parametrize(
    ("command", "at"),
    [
        ({"name": "Upper", "description": "x"}, "0.name"),
        ({"name": "fine", "description": ""}, "0.description"),
        ({"name": "fine", "description": "x" * 101}, "0.description"),
        ({"name": "two words", "description": "x"}, "0.name"),
    ],
)
def test_commands_that_are_refused(command, at):
    async def go():
        async with meeting() as (local, bot):
            with pytest.raises(discord.HTTPException, match=f"In {at}"):
                await bot.http.bulk_upsert_global_commands(bot.user.id, [command])
            assert local.commands[None] == []

    asyncio.run(go())


@pytest.mark.parametrize(
    "buttons",
    [
        [{"type": 2, "style": 1, "label": "x" * 81, "custom_id": "a"}],
        [{"type": 2, "style": 1, "label": "x", "custom_id": "a" * 101}],
        [{"type": 2, "style": 1, "label": "x"}],
        [{"type": 2, "style": 1, "custom_id": "a"}],
        [{"type": 2, "style": 1, "label": str(i), "custom_id": "a"} for i in range(2)],
        [{"type": 2, "style": 1, "label": str(i), "custom_id": str(i)} for i in range(6)],
    ],
)
def test_buttons_that_are_refused(buttons):
    async def go():
        async with meeting() as (local, bot):
            body = {"content": "x", "components": [{"type": 1, "components": buttons}]}
            route = discord.http.Route(
                "POST", "/channels/{channel_id}/messages", channel_id=local.channel("general").id
            )
            with pytest.raises(discord.HTTPException, match=r"In components\.0\.components"):
                await bot.http.request(route, json=body)
            assert not local.channel("general").messages

    asyncio.run(go())
