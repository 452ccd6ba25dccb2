"""The local Discord's page in a real browser: what a person sees of a channel, and does there."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from tests.discord.local.bot import meeting

import discord
from discord import app_commands

pytestmark = pytest.mark.slow  # what it shows is itself a helper of tests

ANSWER = """Here is **code**:
```python
def add_one(number):
    return number + 1  # a comment that is long enough to be wider than any small screen there is
```
and a list:
- one
- `two` for <@{user}>
> quoted words
<b>That</b> is all."""


class Buttons(discord.ui.View):
    def __init__(self):
        super().__init__(timeout=None)

    @discord.ui.button(label="Stop", style=discord.ButtonStyle.danger, custom_id="stop")
    async def stop_it(self, interaction, button):
        await interaction.response.edit_message(content="*Stopped.*", view=None)

    @discord.ui.button(label="Reasoning", custom_id="why")
    async def why(self, interaction, button):
        await interaction.response.send_message("> Because it was asked.", ephemeral=True)

    @discord.ui.button(label="Silent", custom_id="silent")
    async def silent(self, interaction, button): ...


def prepare(bot: discord.Client) -> app_commands.CommandTree:
    """Let the bot answer mentions and commands."""
    tree = app_commands.CommandTree(bot)

    @tree.command(description="Choose the model")
    async def model(interaction: discord.Interaction, name: str) -> None:
        await interaction.response.send_message(f"Now {name}.")

    @model.autocomplete("name")
    async def names(interaction: discord.Interaction, current: str) -> list[app_commands.Choice[str]]:
        return [app_commands.Choice(name=one, value=one) for one in ("gpt-oss-120b", "gpt-oss-20b") if current in one]

    @bot.event
    async def on_message(message: discord.Message) -> None:
        if message.author == bot.user or bot.user not in message.mentions:
            return
        await message.add_reaction("🤔")
        reply = await message.reply("*Thinking...*", view=Buttons(), mention_author=False)
        await reply.edit(content=ANSWER.format(user=message.author.id))
        for attachment in message.attachments:
            await message.reply(f"read {(await attachment.read()).decode()}")

    return tree


@pytest.fixture
def local() -> Iterator:
    """A local Discord with a bot at work, in a thread of its own; the page closes before it."""
    found, ready, loop = [], threading.Event(), asyncio.new_event_loop()
    end = asyncio.Event()

    async def go():
        async with meeting() as (local, bot):
            await prepare(bot).sync()
            found.append(local)
            ready.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(go(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(20)
        loop.close()


def test_a_conversation_on_the_page(local, open_page, shot, tmp_path):
    page = open_page(local.url)
    messages = page.locator("article")
    expect(page.locator("#online")).to_have_text("eyas is online")
    page.fill("#text", "How do I add one?")
    page.keyboard.press("Enter")
    expect(messages).to_have_count(2)
    expect(messages.nth(0)).to_contain_text("@eyas How do I add one?")
    expect(messages.nth(0).locator(".row button")).to_have_text("🤔 1")
    answer = messages.nth(1)
    expect(answer.locator("pre")).to_contain_text("def add_one(number):")
    expect(answer.locator("strong")).to_have_text("code")
    expect(answer.locator("blockquote")).to_have_text("quoted words")
    expect(answer).to_contain_text("<b>That</b> is all.")  # text, never markup
    expect(answer.locator(".mention").last).to_have_text("@ann")
    expect(answer).to_contain_text("(edited)")
    answer.get_by_role("button", name="Reasoning").click()
    expect(page.locator("article.private")).to_contain_text("Because it was asked.")
    page.fill("#text", "/")
    expect(page.locator("#suggestions")).to_contain_text("/modelChoose the model")
    page.locator("#suggestions button").click()
    page.locator("#suggestions button", has_text="gpt-oss-20b").click()
    page.keyboard.press("Enter")
    expect(messages.last).to_contain_text("ann used /model")
    expect(messages.last).to_contain_text("Now gpt-oss-20b.")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1200, 360):
            page.set_viewport_size({"width": width, "height": 760})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            shot(page, f"local-discord-{scheme}-{width}")
    answer.get_by_role("button", name="Stop").click()
    expect(answer).to_contain_text("Stopped.")
    expect(answer.locator(".style-4")).to_have_count(0)


def test_files_people_and_private_conversations(local, open_page, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("naïve words")
    page = open_page(local.url)
    messages = page.locator("article")
    page.set_input_files("#file", notes)
    page.fill("#text", "read this")
    page.get_by_role("button", name="Send").click()
    expect(messages.nth(0).locator("a")).to_have_text("notes.txt (12 bytes)")
    expect(messages.last).to_contain_text("read naïve words")
    page.fill("#name", "ben")
    page.get_by_role("button", name="Join").click()
    expect(page.locator("#viewer")).to_have_value("ben")
    messages.nth(1).hover()
    messages.nth(1).get_by_role("button", name="Reply").click()
    page.uncheck("#mention")
    page.fill("#text", "thanks")
    page.keyboard.press("Enter")
    expect(page.locator("article", has_text="thanks").locator(".quote").first).to_contain_text("eyas:")
    page.select_option("#channel", label="@ben")
    expect(page.locator("#messages")).to_have_text("No message yet.")
    page.check("#mention")
    page.fill("#text", "psst")
    page.keyboard.press("Enter")
    expect(messages.first).to_contain_text("psst")
    assert {one.author.name for one in local.dm("ben").messages.values()} >= {"ben"}


@pytest.mark.slow
def test_a_button_that_the_bot_does_not_answer(local, open_page):
    page = open_page(local.url)
    page.fill("#text", "hello")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Silent").click()
    local.clock.ahead_s += 3.1
    expect(page.locator("#notice")).to_have_text("This interaction failed.")
