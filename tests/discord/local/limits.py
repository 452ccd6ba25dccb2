"""Rate limits: buckets of routes with their headers, the limit over all routes, and who ignored an announcement."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from zlib import crc32

__all__ = ["RULES", "Limited", "Limits", "Rule"]


@dataclass(frozen=True)
class Rule:
    """A number of requests in a number of seconds, for each channel or token; routes with the same bucket share it."""

    bucket: str
    limit: int
    per_s: float


# Observed with bots; Discord publishes none of them, and asks bots not to rely on them.
RULES = {
    "send": Rule("send", 5, 5.0),
    "edit": Rule("edit", 5, 5.0),
    "delete": Rule("delete", 5, 1.0),
    "typing": Rule("typing", 5, 5.0),
    "react": Rule("react", 1, 0.25),
    "unreact": Rule("unreact", 1, 0.25),
    "unreact_other": Rule("unreact", 1, 0.25),
    "history": Rule("history", 5, 1.0),
    "fetch": Rule("fetch", 5, 1.0),
    "callback": Rule("callback", 5, 1.0),
    "followup": Rule("webhook", 5, 2.0),
    "followup_get": Rule("webhook", 5, 2.0),
    "followup_edit": Rule("webhook", 5, 2.0),
    "followup_delete": Rule("webhook", 5, 2.0),
}
OTHER = Rule("", 50, 1.0)


@dataclass
class Window:
    """What is left of a bucket until it is full again.

    `told_s` is when the headers of a good answer said that nothing is left, `refused_s` when a 429 did.
    """

    ends_s: float = 0.0
    remaining: int = 0
    told_s: float = math.inf
    refused_s: float = math.inf

    def violated(self, before_s: float) -> str | None:
        """What a client ignored that sends a request now, if it had known it `before_s`."""
        if self.told_s < before_s:
            return "limit"
        return "retry" if self.refused_s < before_s else None


@dataclass(frozen=True)
class Limited:
    """Whether a request may pass, with the headers of its answer; `retry_after_s` where it may not."""

    headers: dict[str, str]
    retry_after_s: float | None = None
    is_global: bool = False
    violation: str | None = None  # where the client had been told: limit, retry (by a 429), or global
    key: str | None = None


@dataclass
class Limits:
    """Settable at any time; `per_second` 0 lifts the limit over all routes."""

    clock: Callable[[], float]
    rules: dict[str, Rule] = field(default_factory=lambda: dict(RULES))
    other: Rule = OTHER
    per_second: int = 50
    grace_s: float = 0.1  # a request may have been on its way while the announcement was
    windows: dict[str, Window] = field(default_factory=dict, repr=False)
    everything: Window = field(default_factory=Window, repr=False)
    blocked_until_s: float = 0.0  # by a global 429

    def rule(self, name: str) -> Rule:
        found = self.rules.get(name, self.other)
        return found if found.bucket else Rule(name, found.limit, found.per_s)

    def take(self, name: str, major: str, *, counts_globally: bool) -> Limited:
        """Count a request of the route `name`; `major` is its channel, server or token."""
        now = self.clock()
        if counts_globally:
            if now < self.blocked_until_s:
                told = "global" if self.everything.violated(now - self.grace_s) else None
                return Limited({}, self.blocked_until_s - now, is_global=True, violation=told)
            if now >= self.everything.ends_s:
                self.everything = Window(now + 1.0, self.per_second)
            if self.per_second and self.everything.remaining <= 0:
                self.blocked_until_s = self.everything.ends_s
                return Limited({}, self.blocked_until_s - now, is_global=True)
        rule = self.rule(name)
        key = f"{rule.bucket}:{major}"
        window = self.windows.get(key)
        if window is None or now >= window.ends_s:
            window = self.windows[key] = Window(now + rule.per_s, rule.limit)
        if window.remaining <= 0:
            told = window.violated(now - self.grace_s)
            return Limited(self.headers(rule, window, now), window.ends_s - now, violation=told, key=key)
        window.remaining -= 1
        if counts_globally:
            self.everything.remaining -= 1
        return Limited(self.headers(rule, window, now), key=key)

    def headers(self, rule: Rule, window: Window, now: float) -> dict[str, str]:
        return {
            "X-RateLimit-Limit": str(rule.limit),
            "X-RateLimit-Remaining": str(window.remaining),
            "X-RateLimit-Reset": f"{window.ends_s:.3f}",
            "X-RateLimit-Reset-After": f"{math.ceil((window.ends_s - now) * 1000) / 1000:.3f}",
            "X-RateLimit-Bucket": f"{crc32(rule.bucket.encode()):08x}",
        }

    def told(self, limited: Limited) -> None:
        """Remember that the answer with these headers was sent."""
        now = self.clock()
        if limited.is_global:
            self.everything.refused_s = min(self.everything.refused_s, now)
        elif limited.key and limited.retry_after_s is not None:
            window = self.windows[limited.key]
            window.refused_s = min(window.refused_s, now)
        elif limited.key and limited.headers["X-RateLimit-Remaining"] == "0":
            window = self.windows[limited.key]
            window.told_s = min(window.told_s, now)

    def block(self, seconds: float) -> None:
        """Answer every request with a global 429 for a while."""
        self.blocked_until_s = self.clock() + seconds
        self.everything = Window()

    def empty(self, name: str, major: str, seconds: float) -> Limited:
        """Refuse requests of a route for a while, as if its bucket had been used up by others."""
        rule, now = self.rule(name), self.clock()
        key = f"{rule.bucket}:{major}"
        window = self.windows[key] = Window(now + seconds, 0)
        return Limited(self.headers(rule, window, now), seconds, key=key)
