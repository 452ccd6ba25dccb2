"""Prometheus metrics of the bot, all named `eyas:discord_`, and those of its process. They hold no text and no id."""

from __future__ import annotations

from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
    start_http_server,
)

from eyas.base.errors import UserError

__all__ = ["Metrics", "Outcome", "Scope"]

# done: whole. stopped: by a person. timed_out: a budget ran out. failed: no endpoint gave one. refused: a limit of the
# person. empty: the model wrote nothing, or only reasoning. cut: the bot ended before it did.
Outcome = Literal["done", "stopped", "timed_out", "failed", "refused", "empty", "cut"]
Scope = Literal["user", "shared", "global"]  # of a 429 of Discord, as X-RateLimit-Scope has it
PREFIX = "eyas:discord_"
FIRST_TEXT_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 80, 120, 160, 320, 640)


class Metrics:
    """Counters of one bot. Every series is there from the start, so that its first increase is seen."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._questions = self._counter("questions", "Messages that were to be answered, by place.", "place")
        self._answers = self._counter("answers", "Answers by how they ended.", "outcome")
        self._edits = self._counter("edits", "Edits of messages that Discord took.")
        self._limited = self._counter("rate_limited", "429s of Discord by scope.", "scope")
        self._tokens = self._counter("tokens", "Tokens of prompts and answers, as endpoints count them.", "kind")
        self._fallbacks = self._counter("fallbacks", "Answers that a fallback gave.")
        self._open = Gauge(f"{PREFIX}open_answers", "Answers that are being written.", registry=self._registry)
        self._first_text = Histogram(
            f"{PREFIX}time_to_first_text_seconds",
            "Time from a question to the first text of its answer.",
            registry=self._registry,
            buckets=FIRST_TEXT_S,
        )
        for place in ("server", "direct"):
            self._questions.labels(place)
        for outcome in get_args(Outcome):
            self._answers.labels(outcome)
        for scope in get_args(Scope):
            self._limited.labels(scope)
        for kind in ("prompt", "completion"):
            self._tokens.labels(kind)
        ProcessCollector(registry=self._registry)

    def asked(self, *, is_direct: bool) -> None:
        """Count a question, in a server or a direct message."""
        self._questions.labels("direct" if is_direct else "server").inc()

    def began(self) -> None:
        """Count an answer as open; `ended` follows."""
        self._open.inc()

    def first_text(self, seconds: float) -> None:
        """Count the time from a question to the first text of its answer."""
        self._first_text.observe(seconds)

    def ended(self, outcome: Outcome, *, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        """Count an answer that has begun."""
        self._open.dec()
        self._answers.labels(outcome).inc()
        self._tokens.labels("prompt").inc(prompt_tokens)
        self._tokens.labels("completion").inc(completion_tokens)

    def refused(self) -> None:
        """Count a question that a limit of its person kept from being answered."""
        self._answers.labels("refused").inc()

    def edited(self) -> None:
        """Count an edit of a message."""
        self._edits.inc()

    def limited(self, scope: Scope) -> None:
        """Count a 429 of Discord."""
        self._limited.labels(scope).inc()

    def fell_back(self) -> None:
        """Count an answer that a fallback gives."""
        self._fallbacks.inc()

    def text(self) -> bytes:
        """Return the page, in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry)

    def serve(self, host: str, port: int) -> int:
        """Serve the page in a thread of its own and return the port. Raises UserError if it cannot listen there."""
        try:
            server, _ = start_http_server(port, addr=host, registry=self._registry)
        except (OSError, UnicodeError) as error:  # a name of a host with a part of more than 63 characters
            reason = getattr(error, "strerror", None) or str(error)
            raise UserError(f"metrics cannot listen on {host}:{port}: {reason}; choose another metrics.port") from None
        return server.server_port

    def _counter(self, name: str, text: str, label: str = "") -> Counter:
        return Counter(PREFIX + name, text, [label] if label else [], registry=self._registry)
