"""The bot: events of Discord in, answers out. Reconnects are the library's."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

import discord
from eyas.base.logs import fields
from eyas.discord.bot.answering import Answering
from eyas.discord.bot.askers import asker_of
from eyas.discord.bot.history import History
from eyas.discord.bot.pressing import press
from eyas.discord.bot.reading import Reading
from eyas.discord.bot.recovery import finish_off
from eyas.discord.bot.slash import tree_of
from eyas.discord.conversation import Button
from eyas.discord.endpoint import Endpoint
from eyas.discord.gate import Gate
from eyas.discord.metrics import Metrics, Scope
from eyas.discord.permissions import denial, is_operator
from eyas.discord.quotas import Quotas, day_of
from eyas.discord.settings.schema import Settings
from eyas.discord.settings.watch import SettingsFile
from eyas.discord.showing.buttons import AnswerButton
from eyas.discord.showing.desk import Desk
from eyas.discord.showing.rates import trace
from eyas.discord.store import Store

__all__ = ["Bot"]

logger = logging.getLogger(__name__)

LOOK_S = 2.0  # between two looks at the settings file
ENDPOINT_S = 10.0  # between two looks at an endpoint that does not answer
MAX_RATE_LIMIT_S = 900.0  # the library waits so long for a limit, and gives up above it
UNREADABLE = "I cannot read this reply. Switch its mention on, or mention me in it."
BLIND = (
    "without the Message Content intent the bot reads messages that mention it, replies to it with the mention on, "
    "private messages and its own; it does not see what others say in threads and chains of replies "
    "(message_content: true asks for the intent, which must be on in the developer portal: Bot)"
)


class Bot(discord.Client):
    """One bot with the settings of a file, which may change while it runs."""

    def __init__(self, file: SettingsFile, store: Store, metrics: Metrics, **options: Any) -> None:
        self.file, self.store, self.metrics = file, store, metrics
        self._gate = Gate()
        super().__init__(
            intents=_intents(file.settings),
            allowed_mentions=discord.AllowedMentions.none(),
            max_ratelimit_timeout=MAX_RATE_LIMIT_S,
            max_messages=None,
            http_trace=trace(self._limited, self._may_go),
            **options,
        )
        self.endpoint = Endpoint(file.settings)
        self._desks: dict[int, Desk] = {}
        self.history = History(self, store)
        self.reading = Reading(self, self.history, lambda: self.file.settings)
        self.quotas = Quotas(file.settings.limits)
        self.quotas.restore(day_of(time.time()), store.used(day_of(time.time())))
        self.answering = Answering(
            settings=lambda: self.file.settings,
            endpoint=lambda: self.endpoint,
            store=store,
            reading=self.reading,
            desk_of=self._desk_of,
            quotas=self.quotas,
            metrics=metrics,
        )
        self.tree = tree_of(self, self)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_recovered = False
        self._is_closing = False
        self._unfinished = store.unfinished()  # before anything is begun

    # -- the library's events

    async def setup_hook(self) -> None:
        """Register buttons and commands, and look after the endpoint and the file from now on."""
        self.add_dynamic_items(AnswerButton)
        await self.tree.sync()
        self._spawn(self._watch_endpoint())
        self._spawn(self._watch_file())

    async def on_ready(self) -> None:
        """Finish off what an earlier process has left, and begin."""
        self.history.clear()
        logger.info("connected to Discord as %s, in %d servers", self.user, len(self.guilds))
        if self._is_recovered:
            return
        self._is_recovered = True
        if not self.intents.message_content:
            logger.info(BLIND)
        self._spawn(finish_off(self, self.store, self._unfinished, self.file.settings.display))

    async def on_message(self, message: discord.Message) -> None:
        """Answer a message that is for the bot, from a person who may ask here."""
        if not self._is_for_us(message) or message.id <= self.store.forgotten_to(message.author.id):
            return
        settings = self.file.settings
        asker = asker_of(message.author, message.channel, None if message.guild is None else message.guild.id)
        if (reason := denial(settings.access, settings.operators, asker)) is not None:
            logger.debug("a message is not answered", extra=fields(channel=message.channel.id, denied=reason))
            return
        is_ours = is_operator(settings.operators, asker)
        if not message.content and not message.attachments and not self._is_mentioned(message):
            if self.intents.message_content or not self._is_reply_to_us(message):
                return  # in a thread: words that are not shown to the bot, or a sticker
            self.answering.ask(message, is_operator=is_ours, refusal=UNREADABLE)
            return
        self.answering.ask(message, is_operator=is_ours)

    async def on_raw_message_edit(self, event: discord.RawMessageUpdateEvent) -> None:
        """Read an edited message again when it is next wanted."""
        self.history.changed(event.message_id)

    async def on_raw_message_delete(self, event: discord.RawMessageDeleteEvent) -> None:
        """Read a deleted message no more."""
        self.history.changed(event.message_id)

    async def on_raw_bulk_message_delete(self, event: discord.RawBulkMessageDeleteEvent) -> None:
        """Read deleted messages no more."""
        for message_id in event.message_ids:
            self.history.changed(message_id)

    async def close(self) -> None:
        """End the answers with a line, then the connection."""
        if not self._is_closing:
            self._is_closing = True
            for task in self._tasks:
                task.cancel()
            await self.answering.close()
            for desk in self._desks.values():
                desk.close()
            await self.endpoint.close()
            await self.reading.close()
        await super().close()

    # -- buttons and commands

    async def pressed(
        self, interaction: discord.Interaction[Any], button: Button, question_id: int, person_id: int
    ) -> None:
        """Do what a button below an answer says."""
        await press(self, interaction, button, question_id, person_id)

    async def models(self, *, within_s: float | None = None) -> tuple[str, ...]:
        """Return the models and routes that may be chosen; those that are known if the list takes longer."""
        return await self.endpoint.names(within_s=within_s)

    def efforts(self) -> tuple[str, ...]:
        """Return the efforts that may be chosen."""
        return self.file.settings.offer.efforts

    def default_model(self) -> str:
        """Return the model of channels without a choice."""
        return self.endpoint.model

    def may_choose(self, interaction: discord.Interaction[Any]) -> bool:
        """Return whether a person may choose for the channel: it is private, or they manage it or run the bot."""
        is_private = interaction.guild_id is None
        return is_private or interaction.permissions.manage_channels or self.is_operator(interaction)

    def forget(self, person_id: int, to: int) -> None:
        """Forget what a person has said up to a message id."""
        self.store.forget(person_id, to)
        self.answering.forget(person_id)

    async def report(self) -> str:
        """Return the state of the endpoint, and what the bot does."""
        lines = await self.endpoint.status()
        lines.append(f"{len(self.answering)} answers of this bot run")
        if speeds := self.answering.speeds:
            lines.append(f"The last answers came with {sum(speeds) / len(speeds):.1f} tokens per second")
        return "\n".join(f"- {line}" for line in lines)

    def is_operator(self, interaction: discord.Interaction[Any]) -> bool:
        """Return whether the person behind an interaction runs the bot."""
        asker = asker_of(interaction.user, interaction.channel, interaction.guild_id)
        return is_operator(self.file.settings.operators, asker)

    def may_use(self, interaction: discord.Interaction[Any]) -> bool:
        """Return whether the person behind an interaction is answered here."""
        settings = self.file.settings
        asker = asker_of(interaction.user, interaction.channel, interaction.guild_id)
        return denial(settings.access, settings.operators, asker) is None

    # -- inside

    def _is_for_us(self, message: discord.Message) -> bool:
        if message.author.bot or message.type not in (discord.MessageType.default, discord.MessageType.reply):
            return False
        channel = message.channel
        return (
            isinstance(channel, discord.DMChannel)
            or self._is_mentioned(message)
            or (isinstance(channel, discord.Thread) and channel.me is not None)
            or self._is_reply_to_us(message)
        )

    def _is_mentioned(self, message: discord.Message) -> bool:
        return self.user is not None and any(one.id == self.user.id for one in message.mentions)

    def _is_reply_to_us(self, message: discord.Message) -> bool:
        reference = message.reference
        resolved = None if reference is None else reference.resolved
        return isinstance(resolved, discord.Message) and self.user is not None and resolved.author.id == self.user.id

    def _desk_of(self, channel_id: int) -> Desk:
        if (desk := self._desks.get(channel_id)) is None:
            self._desks = {one: desk for one, desk in self._desks.items() if not desk.is_forsaken}
            desk = self._desks[channel_id] = Desk(
                self,
                channel_id,
                self.store,
                lambda: self.file.settings.display.edit_every_s,
                self._gone,
                self.metrics.edited,
            )
        return desk

    async def _may_go(self) -> None:
        """Wait until a request may go, by the limit over all routes."""
        loop = asyncio.get_running_loop()
        while (wait_s := self._gate.opens_at(loop.time()) - loop.time()) > 0:
            await asyncio.sleep(wait_s)
        self._gate.take(loop.time())

    def _limited(self, scope: Scope, retry_after_s: float) -> None:
        """Count a 429 of Discord, and send nothing while one over all routes lasts."""
        self.metrics.limited(scope)
        if scope == "global":
            self._gate.close(asyncio.get_running_loop().time() + retry_after_s)

    def _gone(self, question_id: int) -> None:
        """Write no more of an answer that cannot be seen."""
        if (running := self.answering.find(question_id)) is not None:
            running.abandon("The answer cannot be shown.")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a part of the bot failed", exc_info=error)

    async def _watch_endpoint(self) -> None:
        """Say when the endpoint is there and when not."""
        was: bool | None = None
        while True:
            answers = await self.endpoint.look()
            if answers and not was:
                logger.info("the endpoint answers, with the model %s", self.endpoint.model)
            elif not answers and was is not False:
                logger.warning("the endpoint does not answer; it is looked at every %d seconds", ENDPOINT_S)
            was = answers
            await asyncio.sleep(ENDPOINT_S)

    async def _watch_file(self) -> None:
        """Take over what changes in the file."""
        while True:
            await asyncio.sleep(LOOK_S)
            if (reload := self.file.reload()) is None:
                continue
            if reload.problem is not None:
                logger.error("the changed file is wrong, and the old settings hold: %s", reload.problem)
                continue
            logger.info("the file has changed", extra=fields(keys=",".join(reload.changed)))
            if reload.waits:
                logger.warning("a restart is needed for what has changed", extra=fields(keys=",".join(reload.waits)))
            self.quotas.limits = reload.settings.limits
            if {"endpoint", "fallbacks", "budgets", "offer"} & set(reload.changed):
                new = Endpoint(reload.settings)
                await new.look()  # for the name of its model
                old, self.endpoint = self.endpoint, new
                self._spawn(self.answering.close_later(old))


def _intents(settings: Settings) -> discord.Intents:
    intents = discord.Intents.none()
    intents.guilds = intents.guild_messages = intents.dm_messages = True
    intents.message_content = settings.message_content
    return intents
