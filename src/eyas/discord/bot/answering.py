"""Answers questions: reads what was said before, asks the endpoint, and lets the channel show what comes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import discord
from eyas.base.logs import fields
from eyas.client.errors import ClientError, Refused
from eyas.client.pieces import Asked, End
from eyas.discord.bot.reading import Reading
from eyas.discord.bot.writing import Running
from eyas.discord.context import too_long
from eyas.discord.conversation import Conversation
from eyas.discord.endpoint import Endpoint
from eyas.discord.memory import Recalled, TokenEstimate, Turn, recall
from eyas.discord.metrics import Metrics
from eyas.discord.quotas import Quotas, day_of
from eyas.discord.settings.schema import Settings
from eyas.discord.showing.desk import Desk
from eyas.discord.store import Choice, Kept, Store
from eyas.discord.words import reason_for_log

__all__ = ["Answering"]

logger = logging.getLogger(__name__)

MAX_REASONINGS = 200  # answers whose reasoning is kept in memory
MAX_REASONING_CHARS = 100_000
NOTHING_ASKED = "There is nothing to answer in this message. Write what you want to know."
FLUSH_S = 5.0  # for the last edits when the bot stops


class Answering:
    """All answers of a bot. `desk_of` returns the desk of a channel."""

    def __init__(
        self,
        *,
        settings: Callable[[], Settings],
        endpoint: Callable[[], Endpoint],
        store: Store,
        reading: Reading,
        desk_of: Callable[[int], Desk],
        quotas: Quotas,
        metrics: Metrics,
    ) -> None:
        self._settings, self._endpoint = settings, endpoint
        self._store, self._reading, self._desk_of = store, reading, desk_of
        self._quotas, self._metrics = quotas, metrics
        self._running: dict[int, Running] = {}
        self._runs: set[asyncio.Task[None]] = set()
        self._reasonings: OrderedDict[int, tuple[int, int, str]] = OrderedDict()
        self._estimates: dict[str, TokenEstimate] = {}
        self.speeds: list[float] = []  # tokens per second of the newest answers

    def __len__(self) -> int:
        return len(self._running)

    def find(self, question_id: int) -> Running | None:
        """Return the answer that is being written to a question."""
        return self._running.get(question_id)

    def reasoning(self, question_id: int, channel_id: int) -> str | None:
        """Return the reasoning behind an answer in this channel, as far as it is there and still kept."""
        if (running := self._running.get(question_id)) is not None:
            return running.conversation.reasoning if running.kept.channel_id == channel_id else None
        found = self._reasonings.get(question_id)
        return found[2] if found is not None and found[0] == channel_id else None

    def forget(self, person_id: int) -> None:
        """Drop what is kept of answers to a person."""
        for question_id in [one for one, found in self._reasonings.items() if found[1] == person_id]:
            del self._reasonings[question_id]

    def ask(self, question: discord.Message, *, is_operator: bool, refusal: str | None = None) -> None:
        """Begin to answer a message, once; with a line of the bot's own if that is all there is to say."""
        kept = Kept(question_id=question.id, channel_id=question.channel.id, person_id=question.author.id)
        if self._store.begin(kept):
            self._metrics.asked(is_direct=question.guild is None)
            self._start(question, kept, kept.person_id, is_operator=is_operator, refusal=refusal)

    def refusal(self, person_id: int, *, is_operator: bool) -> str | None:
        """Return why the limits of a person allow no answer now, and count it; None if they do."""
        return self._counted(self._quotas.refusal(person_id, time.time(), is_operator=is_operator))

    def _counted(self, refusal: str | None) -> str | None:
        if refusal is not None:
            self._metrics.refused()
        return refusal

    def ask_again(self, question: discord.Message, kept: Kept, person_id: int, *, is_operator: bool) -> None:
        """Begin to answer a message once more for a person, in the place of its earlier answer."""
        self._start(question, kept, person_id, is_operator=is_operator, number=2 + int(time.time()))

    async def close_later(self, endpoint: Endpoint) -> None:
        """Close an endpoint when the answers that run now are over."""
        if self._runs:
            await asyncio.wait(list(self._runs))
        await endpoint.close()

    async def close(self) -> None:
        """End all answers, with a line that says so."""
        for running in list(self._running.values()):
            running.abandon("The bot was stopped here.")
        if self._runs:
            await asyncio.wait(self._runs, timeout=FLUSH_S)
        for task in self._runs:
            task.cancel()

    def _start(
        self,
        question: discord.Message,
        kept: Kept,
        person_id: int,
        *,
        is_operator: bool,
        refusal: str | None = None,
        number: int = 1,
    ) -> None:
        """Begin an answer for a person; `number` is that of the try."""
        payer = None
        if refusal is None:
            refusal = self._counted(self._quotas.enter(person_id, time.time(), is_operator=is_operator))
            payer = person_id if refusal is None else None
        endpoint = self._endpoint()
        conversation = Conversation(
            self._model(question.channel) or endpoint.model,
            display=self._settings().display,
            has_fallback=bool(endpoint.fallbacks),
        )
        if refusal is not None:
            conversation.end_unfinished(refusal)
        running = self._running[kept.question_id] = Running(
            kept, conversation, self._desk_of(kept.channel_id), number, payer
        )
        task = asyncio.create_task(self._run(running, question))
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    async def _run(self, running: Running, question: discord.Message) -> None:
        """Write one answer to its end, and keep how it went."""
        conversation, kept = running.conversation, running.kept
        if running.payer is not None:
            self._metrics.began()
        try:
            if not conversation.is_over:
                running.work = asyncio.create_task(self._guarded(running, question))
                await asyncio.wait([running.work])
            conversation.end_unfinished("The answer was ended.")
            running.card.changed()
            await running.card.are_shown.wait()
            self._store.shown(kept.question_id)
        finally:
            self._record(running, asyncio.get_running_loop().time() - running.began)
        try:
            await running.card.is_settled.wait()
        finally:
            running.desk.remove(running.card)
            del self._running[kept.question_id]
            self._store.end(kept.question_id)
            running.is_done.set()

    def _record(self, running: Running, seconds: float) -> None:
        """Keep, count and log how an answer went; no text of it is logged."""
        conversation, kept = running.conversation, running.kept
        if conversation.reasoning.strip():
            text = conversation.reasoning[:MAX_REASONING_CHARS]
            self._reasonings[kept.question_id] = (kept.channel_id, kept.person_id, text)
            if len(self._reasonings) > MAX_REASONINGS:
                self._reasonings.popitem(last=False)
        usage, now = conversation.usage, time.time()
        prompt, completion = (0, 0) if usage is None else (usage.prompt_tokens, usage.completion_tokens)
        if running.payer is not None:
            tokens = self._estimated(running) if usage is None else prompt + completion
            used = self._quotas.leave(running.payer, tokens, now)
            self._store.use(day_of(now), running.payer, used)
            self._metrics.ended(conversation.outcome, prompt_tokens=prompt, completion_tokens=completion)
        logger.info(
            "answer",
            extra=fields(
                question=kept.question_id,
                channel=kept.channel_id,
                person=kept.person_id,
                outcome=conversation.outcome if running.payer is not None else "refused",
                seconds=round(seconds, 2),
                prompt_tokens=prompt or None,
                completion_tokens=completion or None,
            ),
        )

    def _estimated(self, running: Running) -> int:
        """Return about how many tokens an answer took whose end, with the server's count, never came."""
        said = running.conversation.reasoning + running.conversation.text
        return running.num_prompt_tokens + self._estimate(running.model).count(said) if said else 0

    async def _guarded(self, running: Running, question: discord.Message) -> None:
        """Let no error of the bot's own leave a question without an end."""
        try:
            await self._work(running, question)
        except Exception:
            logger.exception("question %s: the bot failed", question.id)
            running.conversation.end_unfinished("Something went wrong in the bot. Its log says what.")

    async def _work(self, running: Running, question: discord.Message) -> None:
        """Ask with as much of the conversation as fits."""
        turns, notes = await self._reading.turns(question)
        if not turns:
            running.conversation.end_unfinished(NOTHING_ASKED)
            return
        notes = list(notes)
        max_tokens = self._settings().memory.tokens
        while True:
            recalled = self._recall(turns, question, max_tokens)
            try:
                await self._stream(running, question, recalled, notes)
            except Refused as error:
                long = too_long(error)
                if long is not None and _can_shrink(recalled):
                    max_tokens = recalled.num_tokens // 2
                    continue
                logger.warning("question %s: %s", running.kept.question_id, reason_for_log(error))
                running.conversation.fail(error, None if long is None else str(long))
            except ClientError as error:
                logger.warning("question %s: %s", running.kept.question_id, reason_for_log(error))
                running.conversation.fail(error)
            return

    def _recall(self, turns: Sequence[Turn], question: discord.Message, max_tokens: int) -> Recalled:
        settings, model = self._settings(), self._model(question.channel)
        if (context := self._endpoint().context(model)) is not None:
            max_tokens = min(max_tokens, max(context - settings.answers.max_tokens, context // 2))
        return recall(
            turns,
            system=settings.answers.system or None,
            max_turns=settings.memory.messages,
            max_tokens=max_tokens,
            estimate=self._estimate(model),
        )

    async def _stream(
        self, running: Running, question: discord.Message, recalled: Recalled, notes: Sequence[str]
    ) -> None:
        """Ask the endpoint and take what comes. Raises ClientError."""
        settings, model = self._settings(), self._model(question.channel)
        conversation = running.conversation
        running.model, running.num_prompt_tokens = model, recalled.num_tokens
        dropped = recalled.num_dropped
        left_out = [] if not dropped else [_left_out(dropped)]
        conversation.set_notes([*notes, *left_out])
        pieces = self._endpoint().client.stream(
            recalled.messages,
            max_tokens=settings.answers.max_tokens,
            model=model,
            reasoning_effort=self._choice(question.channel).effort or settings.answers.effort,
        )
        async with aclosing(pieces):
            async for piece in pieces:
                was = conversation.phase
                conversation.take(piece)
                running.card.changed()
                if was == "waiting" and conversation.phase == "writing":
                    self._metrics.first_text(asyncio.get_running_loop().time() - running.began)
                if isinstance(piece, Asked) and piece.is_fallback:
                    self._metrics.fell_back()
                if isinstance(piece, End):
                    self._learn(model, recalled, piece)

    def _learn(self, model: str | None, recalled: Recalled, end: End) -> None:
        texts = [message["content"] for message in recalled.messages]
        if end.usage is not None and all(isinstance(text, str) for text in texts):  # images are no text
            size = sum(len(text.encode(errors="replace")) for text in texts)
            self._estimate(model).learn(size, end.usage.prompt_tokens)
        if end.timings.tokens_per_s is not None:
            self.speeds = [*self.speeds[-19:], end.timings.tokens_per_s]

    def _estimate(self, model: str | None) -> TokenEstimate:
        return self._estimates.setdefault(model or "", TokenEstimate())

    def _choice(self, channel: Any) -> Choice:
        """Return what was chosen for a channel, or for the one that a thread is in."""
        return self._store.choice(channel.id, getattr(channel, "parent_id", None))

    def _model(self, channel: Any) -> str | None:
        return self._choice(channel).model or self._settings().endpoint.model


def _can_shrink(recalled: Recalled) -> bool:
    """Return whether there are turns that can be left out."""
    return len([message for message in recalled.messages if message["role"] != "system"]) > 1


def _left_out(count: int) -> str:
    what = "message" if count == 1 else f"{count} messages"
    return f"The oldest {what} of this conversation did not fit and {'was' if count == 1 else 'were'} left out."
