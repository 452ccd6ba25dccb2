"""The bot's file: defaults, every value, all errors at once, and no token in the file or in an error."""

from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

import pytest

from eyas.base.errors import UserError
from eyas.base.serving.budgets import Budgets
from eyas.discord.settings.reader import read, token
from eyas.discord.settings.schema import Display, Endpoint, Lists, Settings

EXAMPLE = Path(__file__).parents[3] / "examples" / "discord" / "bot.yaml"
MINIMAL = "endpoint: {base_url: http://127.0.0.1:8100/v1}\n"
TOKEN = ".".join(("MTA1ODcyNjM4NDUxMDk3NjAw", "GabcdE", "x" * 38))


@pytest.fixture
def settings_of(tmp_path):
    def settings_of(text, environ=None):
        path = tmp_path / "bot.yaml"
        path.write_text(text, encoding="utf-8")
        return read(path, environ or {})

    return settings_of


@pytest.fixture
def problems_of(settings_of, tmp_path):
    def problems_of(text, environ=None):
        with pytest.raises(UserError) as caught:
            settings_of(text, environ)
        first, *rest = str(caught.value).splitlines()
        assert first == f"{tmp_path / 'bot.yaml'}:"
        return [line.strip() for line in rest]

    return problems_of


def test_the_figures_of_the_seed_are_the_defaults(settings_of, tmp_path):
    found = settings_of(MINIMAL)
    assert found.endpoint == Endpoint(name="endpoint", base_url="http://127.0.0.1:8100")
    assert found.state == tmp_path / "bot.sqlite"
    assert found.budgets == Budgets(queue_s=120, prefill_s=120, stall_s=120, total_s=None)
    assert found.answers.max_tokens == 2048
    shown = found.display
    assert (shown.thinking_reaction, shown.writing_reaction, shown.done_reaction) == ("🤔", "✍️", "✅")
    assert shown.thinking_with("gpt-oss-120b") == "*Thinking with gpt-oss-120b...*"
    assert shown.timed_out_after(120.0) == "⏱️ Response timed out (120s limit). Try a simpler query."
    assert shown.fallback == "🔧 Model temporarily unavailable. Using fallback..."
    assert (shown.edit_every_s, shown.chunk_chars, shown.max_chunks) == (2.0, 1900, 5)
    assert found.files.max_bytes == 1 << 20
    assert found.files.hosts == ("cdn.discordapp.com", "media.discordapp.net")


def test_the_example_is_the_defaults_with_every_key(tmp_path):
    """What it says holds without it, so its comment is true; and each setting stands in it."""
    text = EXAMPLE.read_text(encoding="utf-8")
    path = tmp_path / "bot.yaml"
    path.write_text(text, encoding="utf-8")
    found = read(path, {})
    path.write_text(MINIMAL, encoding="utf-8")
    assert found == read(path, {})

    def keys(cls):
        for item in fields(cls):
            yield item.metadata.get("key") or item.name.removesuffix("_s")
            if item.default_factory is not MISSING:
                yield from keys(item.default_factory)

    missing = {key for key in (*keys(Settings), "base_url", "api_key_env", "model") if f"{key}:" not in text}
    assert not missing


def test_every_value_is_read(settings_of, tmp_path):
    found = settings_of(
        """
endpoint: {base_url: "https://box.example/v1/", api_key_env: KEY, model: route/auto}
fallbacks:
  small: {base_url: "http://127.0.0.1:9", model: small}
  tiny: {base_url: "http://127.0.0.1:9", model: tiny}
state: data/state.sqlite
token_env: OTHER
budgets: {queue: none, total: 600}
answers: {max_tokens: 4k, system: "Be brief.\\n", effort: high}
display: {thinking_reaction: none, writing_reaction: "<a:pen:123>", done_reaction: false, edit_every: 1500ms,
          thinking: "{model}!", timed_out: "after {limit}", fallback: hm, chunk_chars: 2000, max_chunks: 1}
memory: {messages: 3, tokens: 1k}
files: {max_size: 1KiB, max_files: 0, suffixes: [.TXT, .txt], hosts: [cdn.discordapp.com, 127.0.0.1], timeout: 1min,
        images: true, max_image_size: 2MB}
access: {servers: {allow: [1, "2", 1]}, channels: {deny: 3}, direct_messages: false}
operators: {people: [103735883630395392], roles: [5]}
limits: {answers_at_once: none, tokens_a_day: 100k}
offer: {models: [m], routes: [route/auto], efforts: [low]}
metrics: {host: 0.0.0.0, port: 9100}
""",
        {"KEY": "sk-secret"},
    )
    assert found.endpoint == Endpoint(
        name="endpoint", base_url="https://box.example", api_key="sk-secret", model="route/auto"
    )
    assert "sk-secret" not in repr(found)
    assert [one.name for one in found.fallbacks] == ["small", "tiny"]
    assert found.state == tmp_path / "data/state.sqlite" and found.token_env == "OTHER"
    assert found.budgets == Budgets(queue_s=None, total_s=600)
    assert (found.answers.max_tokens, found.answers.system, found.answers.effort) == (4096, "Be brief.", "high")
    assert found.display == Display(
        thinking_reaction=None, writing_reaction="pen:123", done_reaction=None, edit_every_s=1.5, thinking="{model}!",
        timed_out="after {limit}", fallback="hm", chunk_chars=2000, max_chunks=1,
    )  # fmt: skip
    assert (found.memory.messages, found.memory.tokens) == (3, 1024)
    files = found.files
    assert (files.max_bytes, files.max_files, files.suffixes, files.timeout_s) == (1024, 0, (".txt",), 60.0)
    assert files.hosts[-1] == "127.0.0.1" and files.images and files.max_image_bytes == 2_000_000
    assert found.access.servers == Lists(allow=(1, 2)) and found.access.channels == Lists(deny=(3,))
    assert not found.access.direct_messages and found.operators.people == (103735883630395392,)
    assert found.limits.answers_at_once is None and found.limits.tokens_a_day == 102_400
    assert (found.offer.models, found.offer.routes, found.offer.efforts) == (("m",), ("route/auto",), ("low",))
    assert (found.metrics.host, found.metrics.port) == ("0.0.0.0", 9100)


def test_all_that_is_wrong_is_said_at_once(problems_of):
    found = problems_of(
        """
endpont: {}
endpoint: {base_url: ftp://x, modle: m}
display: {edit_every: soon, thinking: "{name}", chunk_chars: 5000}
access: {people: {allow: [bob, 7], deny: []}}
"""
    )
    assert found == [
        "endpont: unknown key (did you mean 'endpoint'?)",
        "display.thinking has a place that means nothing: {name}; there is {model}",
        "display.edit_every wants a time such as 2s, 500ms or 2min, got 'soon'",
        "display.chunk_chars wants 200 to 2000, got 5000",
        "access.people.allow wants ids such as 103735883630395392, got 'bob'; in Discord, with Developer Mode on "
        "(Settings, Advanced), a right click copies them",
        "endpoint.modle: unknown key (did you mean 'model'?)",
        "endpoint.base_url wants an address such as http://127.0.0.1:8000, got 'ftp://x'",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "endpoint wants a base_url: that of a router or server"),
        ("{}", "endpoint wants a base_url"),
        (MINIMAL + "display: {thinking_reaction: abc}", "display.thinking_reaction wants an emoji"),
        (MINIMAL + "display: {edit_every: 100ms}", "display.edit_every wants 0.5 to 60 seconds, got '100ms'"),
        (MINIMAL + f"display: {{edit_every: 1{'0' * 400}}}", "display.edit_every wants 0.5 to 60 seconds, got 1000"),
        (MINIMAL + f"budgets: {{queue: 1{'0' * 400}}}", "budgets.queue wants seconds above 0"),
        (MINIMAL + "display: {fallback: '{model}'}", "display.fallback has a place that means nothing: {model}"),
        (MINIMAL + "files: {hosts: ['https://cdn.discordapp.com']}", "files.hosts wants host names"),
        (MINIMAL + "files: {hosts: []}", "files.hosts wants at least 1, got an empty list"),
        (MINIMAL + "files: {max_size: 5}", "files.max_size wants a size such as 1MiB or 512KiB, got 5"),
        (MINIMAL + "files: {max_size: 1GiB}", "files.max_size wants 1 B to 25 MiB, got 1GiB"),
        (MINIMAL + "files: {suffixes: [txt]}", "files.suffixes wants endings of file names"),
        (MINIMAL + "files: {images: 'yes please'}", "files.images wants true or false"),
        (MINIMAL + "operators: {people: [true]}", "operators.people wants ids"),
        (MINIMAL + "operators: {people: [1.0e18]}", "operators.people wants ids"),
        (MINIMAL + "offer: {efforts: [extreme]}", "offer.efforts wants low or medium or high"),
        (MINIMAL + "state: 5", "state wants the path of a file"),
        (MINIMAL + "budgets: {first: 5}", "budgets.first: unknown key"),
        (MINIMAL + "access: {people: {allow: [7], deny: [7]}}", "access.people allows and denies 7"),
        (MINIMAL + "fallbacks: {small: {model: x}}", "fallbacks.small wants a base_url"),
        (MINIMAL + "fallbacks: {same: {base_url: 'http://127.0.0.1:8100'}}", "fallbacks.same has the same address"),
        (MINIMAL + "fallbacks: {endpoint: {base_url: 'http://a'}}", "fallbacks.endpoint has the name of the first one"),
        (
            "endpoint: {base_url: 'http://a', model: gpt-oss-12b}\noffer: {models: [gpt-oss-120b]}",
            "endpoint.model: no model or route offered 'gpt-oss-12b' (did you mean 'gpt-oss-120b'?)",
        ),
        ("endpoint: {base_url: 'http://a', api_key_env: KEY}", "endpoint.api_key_env names the environment variable"),
    ],
)
def test_each_error_has_its_place_and_stands_alone(problems_of, text, says):
    (problem,) = problems_of(text)
    assert problem.startswith(says)


@pytest.mark.parametrize(
    "text",
    [
        f"token: {TOKEN}",
        "token: short-but-perhaps-one",
        f"token_env: {TOKEN}",
        f"answers: {{system: 'say {TOKEN}'}}",
        f"endpoint: {{base_url: 'http://a', api_key_env: {TOKEN}}}",
        f"offer: {{models: [{TOKEN}]}}",
        f"{TOKEN}: 1",
        f"display: {{{TOKEN}: 1}}",
    ],
)
def test_a_token_in_the_file_is_an_error_that_does_not_quote_it(problems_of, text):
    found = problems_of(text if "endpoint" in text else MINIMAL + text)
    assert len(found) == 1 and "holds a token. Take it out" in found[0]
    assert TOKEN[:12] not in found[0] and TOKEN[-8:] not in found[0] and "short-but" not in found[0]


def test_a_key_in_place_of_the_name_of_its_variable_is_not_quoted(problems_of):
    (problem,) = problems_of("endpoint: {base_url: 'http://a', api_key_env: sk-proj-123}")
    assert "wants the name of an environment variable" in problem and "sk-" not in problem


def test_the_token_comes_from_the_environment(settings_of):
    found = settings_of(MINIMAL + "token_env: BOT")
    assert token(found, {"BOT": f" {TOKEN}\n"}) == TOKEN
    with pytest.raises(UserError, match="variable BOT is not set; it holds the bot's token"):
        token(found, {"DISCORD_TOKEN": TOKEN})
    with pytest.raises(UserError, match="BOT holds no token") as caught:
        token(found, {"BOT": "some words"})
    assert "words" not in str(caught.value)


def test_settings_are_frozen_all_the_way_down(settings_of):
    def look(value):
        if is_dataclass(value):
            assert value.__dataclass_params__.frozen
            for item in fields(value):
                look(getattr(value, item.name))
        else:
            assert not isinstance(value, list | dict | set)

    look(settings_of(MINIMAL))
