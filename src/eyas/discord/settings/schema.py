"""Settings of a Discord bot, as its YAML file gives them. Times end in `_s` (seconds), sizes in `_bytes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from eyas.base.harmony.rendering import Effort
from eyas.base.serving.budgets import Budgets
from eyas.base.settings.config import int_from, one_of
from eyas.base.settings.values import scalar, text, true_or_false
from eyas.discord.settings.fields import (
    duration,
    host,
    list_of,
    none_or,
    prose,
    reaction,
    size,
    snowflake,
    template,
)

__all__ = [
    "EFFORTS",
    "MAX_MESSAGE_CHARS",
    "TOKEN_ENV",
    "Access",
    "Answers",
    "Display",
    "Endpoint",
    "Files",
    "Limits",
    "Lists",
    "Memory",
    "Metrics",
    "Offer",
    "Operators",
    "Settings",
]

EFFORTS: tuple[Effort, ...] = get_args(Effort)
TOKEN_ENV = "DISCORD_TOKEN"
MAX_MESSAGE_CHARS = 2000  # of a message of Discord; above it a request is refused
MIN_CHUNK_CHARS = 200  # below it fences, lists and links leave no room for text
HOSTS = ("cdn.discordapp.com", "media.discordapp.net")  # where Discord keeps attachments
MIB = 1 << 20
SUFFIXES = (  # of files that are read as text whatever type they are said to be
    *(".txt", ".md", ".rst", ".tex", ".csv", ".tsv", ".log", ".json", ".jsonl", ".yaml", ".yml", ".toml", ".ini"),
    *(".cfg", ".conf", ".xml", ".html", ".css", ".js", ".ts", ".tsx", ".jsx", ".py", ".ipynb", ".rs", ".go", ".c"),
    *(".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".kt", ".cs", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".sh"),
    *(".ps1", ".bat", ".sql", ".diff", ".patch", ".srt", ".vtt", ".tf", ".nix", ".zig", ".swift", ".dart", ".hs"),
)


def _setting(default: Any, parse: Callable[[Any], Any], *, key: str = "") -> Any:
    """Declare a key of the file, and its name there where that is another one."""
    return field(default=default, metadata={"parse": parse, "key": key})


def _suffix(value: object) -> str:
    found = text(value).lower()
    if not found.startswith(".") or "/" in found:
        raise ValueError(f"wants endings of file names such as .txt, got '{found[:40]}'")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """An OpenAI endpoint. `api_key` is the key itself, from the variable that the file names, and is not shown."""

    name: str
    base_url: str  # without /v1
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None  # None: the first one that it lists


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """Fields of a request where neither channel nor person have chosen."""

    max_tokens: int = _setting(2048, scalar(int_from(1, MIB)))
    system: str = _setting("", prose)  # the system prompt; empty: none
    effort: Effort | None = _setting(None, none_or(scalar(one_of(*EFFORTS))))  # noqa: RUF009


@dataclass(frozen=True, kw_only=True, slots=True)
class Display:
    """Reactions and texts, and how an answer is shown while it grows. A reaction that is None is not given."""

    thinking_reaction: str | None = _setting("\N{THINKING FACE}", reaction)
    writing_reaction: str | None = _setting("\N{WRITING HAND}\N{VARIATION SELECTOR-16}", reaction)
    done_reaction: str | None = _setting("\N{WHITE HEAVY CHECK MARK}", reaction)
    thinking: str = _setting("*Thinking with {model}...*", template("model"))
    timed_out: str = _setting(
        "\N{STOPWATCH}\N{VARIATION SELECTOR-16} Response timed out ({limit}s limit). Try a simpler query.",
        template("limit"),
    )
    fallback: str = _setting("\N{WRENCH} Model temporarily unavailable. Using fallback...", template())
    edit_every_s: float = _setting(2.0, duration(0.5, 60), key="edit_every")
    chunk_chars: int = _setting(1900, scalar(int_from(MIN_CHUNK_CHARS, MAX_MESSAGE_CHARS)))
    max_chunks: int = _setting(5, scalar(int_from(1, 20)))  # above it the rest is a file

    def thinking_with(self, model: str) -> str:
        """Return the reply that is shown before the first text."""
        return self.thinking.replace("{model}", model)

    def timed_out_after(self, limit_s: float) -> str:
        """Return the text for a budget of `limit_s` seconds that has run out."""
        return self.timed_out.replace("{limit}", f"{limit_s:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Share of a conversation that goes on to the model: the newest messages within both limits."""

    messages: int = _setting(25, scalar(int_from(1, 200)))
    tokens: int = _setting(6000, scalar(int_from(64)))  # with max_tokens 2048 within a context of 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """Attachments that are read. Images go on to models that take them."""

    max_bytes: int = _setting(MIB, size(1, 25 * MIB), key="max_size")
    max_files: int = _setting(10, scalar(int_from(0, 10)))  # of a message, of which Discord allows 10
    suffixes: tuple[str, ...] = _setting(SUFFIXES, list_of(_suffix))
    hosts: tuple[str, ...] = _setting(HOSTS, list_of(host, least=1))
    timeout_s: float = _setting(20.0, duration(1, 300), key="timeout")
    images: bool = _setting(False, true_or_false)
    max_image_bytes: int = _setting(8 * MIB, size(1, 25 * MIB), key="max_image_size")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lists:
    """Ids that are allowed (none: all are) and denied. A denial wins."""

    allow: tuple[int, ...] = _setting((), list_of(snowflake))
    deny: tuple[int, ...] = _setting((), list_of(snowflake))


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Places and people that are answered."""

    servers: Lists = field(default_factory=Lists)
    channels: Lists = field(default_factory=Lists)
    roles: Lists = field(default_factory=Lists)
    people: Lists = field(default_factory=Lists)
    direct_messages: bool = _setting(True, true_or_false)


@dataclass(frozen=True, kw_only=True, slots=True)
class Operators:
    """People who run the bot: no list and no limit holds for them, and they may stop any answer."""

    people: tuple[int, ...] = _setting((), list_of(snowflake))
    roles: tuple[int, ...] = _setting((), list_of(snowflake))


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Limits of one person. A day is one of the calendar in UTC; None is no limit."""

    answers_at_once: int | None = _setting(2, none_or(scalar(int_from(1, 1000))))
    tokens_a_day: int | None = _setting(None, none_or(scalar(int_from(1))))


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """Choices of /model and /effort. No models and no routes: what the endpoint lists."""

    models: tuple[str, ...] = _setting((), list_of(text))
    routes: tuple[str, ...] = _setting((), list_of(text))
    efforts: tuple[Effort, ...] = _setting(EFFORTS, list_of(scalar(one_of(*EFFORTS)), least=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """Address of Prometheus metrics; without a port there are none."""

    host: str = _setting("127.0.0.1", host)
    port: int | None = _setting(None, none_or(scalar(int_from(0, 65535))))


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A whole file. `token_env` names the variable of the bot's token, which stands nowhere else."""

    endpoint: Endpoint
    fallbacks: tuple[Endpoint, ...] = ()  # asked in this order
    state: Path  # a file of SQLite
    token_env: str = TOKEN_ENV
    message_content: bool = False  # whether the Message Content intent is asked for
    budgets: Budgets = field(default_factory=Budgets)
    answers: Answers = field(default_factory=Answers)
    display: Display = field(default_factory=Display)
    memory: Memory = field(default_factory=Memory)
    files: Files = field(default_factory=Files)
    access: Access = field(default_factory=Access)
    operators: Operators = field(default_factory=Operators)
    limits: Limits = field(default_factory=Limits)
    offer: Offer = field(default_factory=Offer)
    metrics: Metrics = field(default_factory=Metrics)
