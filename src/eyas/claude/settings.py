"""Claude Code's settings for a server. Pure: facts in, settings out. Why each is there: docs/claude_code.md."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from eyas.base.errors import UserError
from eyas.claude.server import START_ONE, Server

__all__ = ["MIN_CONTEXT", "check_context", "make_settings", "max_output_tokens"]

MIN_CONTEXT = 48 << 10  # of which prompt, tools and the compaction buffer take more than half
# What Claude Code 2.1.330 keeps free before it compacts: 13,000 tokens, and of the longest output up to 20,000
BUFFER = 13_000
BUFFERED_OUTPUT = 20_000
LONGEST_OUTPUT = 32_000  # the client's own for a model that it does not know
ROUND = 1024

MODELS = (
    "ANTHROPIC_MODEL",
    *(f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in ("OPUS", "SONNET", "HAIKU", "FABLE")),
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
CLOUDS = ("ANTHROPIC_AWS", "ANTHROPIC_GOOGLE_CLOUD", "BEDROCK", "FOUNDRY", "GATEWAY", "MANTLE", "VERTEX")
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
NO_KEY = "eyas"  # without any token the client wants a login


def check_context(server: Server) -> None:
    """Raise UserError if the context is too small for Claude Code."""
    if server.context < MIN_CONTEXT:
        raise UserError(
            f"{server.model} at {server.url} has {server.context:,} tokens of context, and Claude Code needs "
            f"{MIN_CONTEXT:,} for its first prompt and what it keeps free; start the server with more: {START_ONE}"
        )


def max_output_tokens(context: int) -> int:
    """Return the longest output with which the buffer before compaction leaves half of `context` tokens or more."""
    room = context // 2 - BUFFER
    return LONGEST_OUTPUT if room >= BUFFERED_OUTPUT else room // ROUND * ROUND


def make_settings(
    server: Server, environ: Mapping[str, str], *, key: str | None = None, key_variable: str | None = None
) -> dict[str, object]:
    """Return the settings for `server`, as they stand in a settings file.

    The key is the token itself, or is read by the client from the environment variable `key_variable`. `environ` is
    asked for proxies, since the server is reached without them. Raises UserError for a context that is too small.
    """
    check_context(server)
    env = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": "" if key_variable else key or NO_KEY,
        "ANTHROPIC_API_KEY": "",
        **dict.fromkeys(MODELS, server.model),
        "CLAUDE_CODE_DISABLE_1M_CONTEXT": "1",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(server.context),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(max_output_tokens(server.context)),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # The person's own, which would lead elsewhere or send secrets here
        "ANTHROPIC_CUSTOM_HEADERS": "",
        **{f"CLAUDE_CODE_USE_{cloud}": "" for cloud in CLOUDS},
        **_without_proxy(server.url, environ),
    }
    return {
        "env": env,
        "apiKeyHelper": f"printenv {key_variable}" if key_variable else "",
        "permissions": {"defaultMode": "default", "deny": ["WebSearch"]},
    }


def _without_proxy(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what makes the client go to `url` directly; nothing where no proxy is set."""
    if not any(environ.get(name) or environ.get(name.upper()) for name in PROXIES):
        return {}
    hosts = [environ.get("no_proxy") or environ.get("NO_PROXY"), urlsplit(url).hostname]
    return dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(filter(None, hosts)))
