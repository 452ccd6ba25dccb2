"""The settings as facts of a server make them, and the room that the client then has."""

import pytest

from eyas.base.errors import UserError
from eyas.claude.server import Server
from eyas.claude.settings import MIN_CONTEXT, make_settings, max_output_tokens

NAME = "claude-local-gpt-oss-20b"


def of(context=65536, environ=None, url="http://127.0.0.1:8000", **options):
    return make_settings(Server(url=url, model=NAME, context=context, version=None), environ or {}, **options)


@pytest.mark.parametrize(("context", "tokens"), [(48, 11), (64, 19), (128, 31.25)])
def test_output_of_known_windows(context, tokens):
    assert max_output_tokens(context << 10) == tokens * 1024


def test_the_buffer_leaves_half_of_every_window():
    outputs = [max_output_tokens(context) for context in range(MIN_CONTEXT, 140_000, 97)]
    for context, output in zip(range(MIN_CONTEXT, 140_000, 97), outputs, strict=True):
        assert 13_000 + min(20_000, output) <= context // 2
        assert 8192 <= output <= 32_000
    assert outputs == sorted(outputs)


def test_all_of_them():
    settings = of()
    env = settings["env"]
    assert settings["permissions"] == {"defaultMode": "default", "deny": ["WebSearch"]}
    assert settings["apiKeyHelper"] == ""
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000"
    assert (env["ANTHROPIC_AUTH_TOKEN"], env["ANTHROPIC_API_KEY"]) == ("eyas", "")
    assert {name for name, value in env.items() if value == NAME} == {
        *("ANTHROPIC_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"),
        *(f"ANTHROPIC_DEFAULT_{tier}_MODEL" for tier in ("OPUS", "SONNET", "HAIKU", "FABLE")),
    }
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536" and env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "19456"
    assert env["CLAUDE_CODE_ATTRIBUTION_HEADER"] == "0"
    assert env["CLAUDE_CODE_DISABLE_1M_CONTEXT"] == env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert all(isinstance(value, str) for value in env.values())


def test_a_key():
    assert of(key="s3cret")["env"]["ANTHROPIC_AUTH_TOKEN"] == "s3cret"
    named = of(key_variable="SERVER_KEY")
    assert named["apiKeyHelper"] == "printenv SERVER_KEY" and named["env"]["ANTHROPIC_AUTH_TOKEN"] == ""


def test_what_would_lead_elsewhere_is_empty():
    env = of()["env"]
    for name in ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "ANTHROPIC_CUSTOM_HEADERS", "ANTHROPIC_API_KEY"):
        assert env[name] == ""


def test_proxies():
    assert not {"NO_PROXY", "no_proxy"} & set(of(environ={"NO_PROXY": "a"})["env"])
    env = of(environ={"HTTPS_PROXY": "http://p:1"}, url="http://[::1]:8000")["env"]
    assert env["NO_PROXY"] == env["no_proxy"] == "::1"
    env = of(environ={"all_proxy": "http://p:1", "NO_PROXY": "a,.b"}, url="http://box:8000")["env"]
    assert env["NO_PROXY"] == env["no_proxy"] == "a,.b,box"


def test_a_small_context_is_refused():
    assert of(context=49152)
    with pytest.raises(
        UserError, match=r"has 49,151 tokens of context, .* needs 49,152 .*: eyas serve .* --context 64k"
    ):
        of(context=49151)
