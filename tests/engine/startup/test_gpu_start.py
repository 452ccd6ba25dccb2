"""`eyas serve` on a GPU with many conversations at once: it starts, and all of them are answered together."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.serving import LIMIT_S, served

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("concurrency", "flags"),
    [
        (1, ()),
        (16, ("--draft-tokens", "3")),
        (17, ()),
        (32, ("--draft", "none")),
        (64, ()),
        (512, ()),
    ],
)
def test_a_server_starts_and_answers_that_many(concurrency, flags):
    with served("demo", "--device", "cuda", "--concurrency", str(concurrency), *flags) as server:

        def ask(number):
            with server.ask(max_tokens=16, ignore_eos=True, temperature=1, seed=number) as response:
                return response.status_code, json.loads(response.read())["usage"]["completion_tokens"]

        with ThreadPoolExecutor(concurrency) as threads:
            answers = list(threads.map(ask, range(concurrency), timeout=LIMIT_S))
        assert answers == [(200, 16)] * concurrency
        assert server.get("/ready").status_code == 200
