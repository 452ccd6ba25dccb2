"""Our own server asked through its chat endpoint answers as it does when it is asked for messages itself."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.gateway.conftest import codec, stub_server  # noqa: F401 - a fixture
from tests.gateway.support.anthropic import (
    USER,
    WEATHER,
    Histories,
    folded,
    post,
    records,
    whole,
    without_ids,
)
from tests.gateway.support.gateway import Server
from tests.gateway.support.responses import Script, analysis, call, final, spoken
from tests.router.support.translating import Front

CONTEXT = 20_000
TEXTS = ("thinking", "text")


@pytest.fixture(scope="module")
def scripted(codec) -> Iterator[tuple[Server, Script]]:  # noqa: F811
    script = Script()
    with stub_server(codec, script, context=CONTEXT) as server:
        yield server, script


@pytest.fixture(scope="module")
def front(scripted) -> Iterator[Front]:
    one = Front(scripted[0].url)
    with one.serving() as url:
        one.client = SimpleNamespace(url=url)
        yield one


@pytest.fixture
def sdk(front):
    import anthropic

    return anthropic.Anthropic(base_url=front.client.url, api_key="none", max_retries=0, timeout=20)


def said(message: dict) -> dict:
    """Return what the engine decides: the prompts differ, as a chat has other places for system messages.

    A chat has one reasoning and one content: newlines stand between what were messages of the model.
    """
    usage = {name: message["usage"][name] for name in ("output_tokens", "output_tokens_details")}
    texts = {name: "".join(block.get(name, "") for block in message["content"]).replace("\n", "") for name in TEXTS}
    calls = [block for block in without_ids(message)["content"] if block["type"] == "tool_use"]
    stop = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    return texts | stop | {"calls": calls, "usage": usage}


@pytest.mark.parametrize("seed", range(12))
def test_random_conversations_and_answers(scripted, front, codec, seed):  # noqa: F811
    server, script = scripted
    histories = Histories(seed)
    body = histories.body()
    script.play(spoken(codec, *histories.answer()))
    native = said(whole(server, **body))
    assert said(whole(front.client, **body)) == native
    answer = post(front.client, stream=True, **body)
    assert said(folded(records(answer.text))) == native, "its usage comes with each chunk"


def test_a_prompt_that_is_too_long(scripted, front):
    script = scripted[1]
    script.play([0])
    long = [{"role": "user", "content": "word " * 2 * CONTEXT}]
    for is_stream in (False, True):
        answer = post(front.client, messages=long, stream=is_stream)
        assert answer.status_code == 400 and answer.headers["x-should-retry"] == "false"
        assert answer.json()["error"]["message"].startswith("prompt is too long: ")
        assert answer.json()["error"]["message"].endswith(f" tokens > {CONTEXT} maximum")


def test_counting_gives_the_tokens_of_the_prompt(scripted, front, codec, sdk):  # noqa: F811
    script = scripted[1]
    script.play(spoken(codec, final("Yes.")))
    for seed in range(4):
        body = Histories(seed).body()
        message = whole(front.client, **body)
        usage = message["usage"]
        body.pop("max_tokens")
        counted = sdk.messages.count_tokens(model="claude-any", **body)
        assert counted.input_tokens == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_the_official_client_streams_tool_calls(scripted, sdk, codec):  # noqa: F811
    scripted[1].play(spoken(codec, analysis("It asks for Oslo."), call('{"city":"Oslo"}')))
    with sdk.messages.stream(model="claude-any", max_tokens=500, messages=[USER], tools=[WEATHER]) as stream:
        message = stream.get_final_message()
    thought, used = message.content
    assert thought.thinking == "It asks for Oslo." and used.input == {"city": "Oslo"}
    assert message.stop_reason == "tool_use" and message.usage.output_tokens > 0


def test_the_official_client_stops_at_its_strings(scripted, sdk, codec):  # noqa: F811
    scripted[1].play(spoken(codec, analysis("a b"), final("one, two, three")))
    fields = {"model": "claude-any", "max_tokens": 500, "messages": [USER], "stop_sequences": [", t", "b"]}
    message = sdk.messages.create(**fields)
    assert (message.content[-1].text, message.stop_reason, message.stop_sequence) == ("one", "stop_sequence", ", t")
    with sdk.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    assert (streamed.content[-1].text, streamed.stop_sequence) == ("one", ", t")
