"""Windows of a real server: prompts of the wanted length, as many tokens as it counts, one turn for all arms."""

import signal
import time

import httpx
import pytest
from tests.support.serving import served

from eyas.base.errors import UserError
from eyas.bench.endpoint.verdict import total_speed
from eyas.tune.measure import Measurer, prompts_for
from eyas.tune.schedule import Cell


def test_prompts_have_the_length_that_is_wanted_and_differ():
    for context in (2048, 32_768):
        prompts = prompts_for(context, 4.0, seed=0)
        lengths = {len(prompt.messages[0]["content"]) for prompt in prompts}
        assert len(prompts) == 40 and lengths == {4 * context}
        assert len({prompt.messages[0]["content"][:500] for prompt in prompts}) == 40
    assert {prompt.category for prompt in prompts_for(128, 4.0, seed=0)} == {"chat"}


@pytest.mark.slow
def test_windows_of_two_arms_at_one_server(monkeypatch):
    measurer = Measurer(run="r", steady_s=0.5, warm_up_s=0.2, max_tokens=32)
    handler = signal.getsignal(signal.SIGINT)
    with served("null:5") as server:
        found = measurer.windows([("A after 512", server.url), ("B after 512", server.url)], Cell(512, 2), 7)
        assert signal.getsignal(signal.SIGINT) is handler
        named = [(one.arm, one.turn, one.load.concurrency) for one in found]
        assert named == [("A after 512", 7, 2), ("B after 512", 7, 2)]
        prompt_tokens = [record.prompt_tokens for one in found for record in one.records]
        assert all(abs(number - 512) < 200 for number in prompt_tokens), prompt_tokens
        assert 0 < total_speed(found[0]) <= 2 * 4 / 0.005  # at most four tokens in a round of 5 ms, two answers at once
        with monkeypatch.context() as patched, pytest.raises(UserError, match="does not say how many tokens a prompt"):
            patched.setattr(httpx.Client, "post", nothing_counted)
            Measurer(run="r", steady_s=0.5, warm_up_s=0.2, max_tokens=32).windows([("A", server.url)], Cell(512, 1), 0)
        slow = Measurer(run="r", steady_s=60.0, warm_up_s=0.2, max_tokens=32)
        began = time.monotonic()
        assert slow.windows([("A after 512", server.url)], Cell(512, 2), 8, within_s=1.0) == []
        assert 0.9 < time.monotonic() - began < 5.0
        server.stop(15)
        with pytest.raises(UserError, match="no answer from"):
            measurer.windows([("A after 512", server.url)], Cell(512, 2), 8)


def nothing_counted(self, url, **options):
    return httpx.Response(200, content=b'{"choices": []}', request=httpx.Request("POST", url))
