"""Questions of the router's own: by queue and breaker like any other, and to the next backend after a failure."""

import asyncio
import json
import time

import pytest
from tests.router.support.relayed import Relayed, relayed
from tests.router.support.scripted import Script, ScriptedBackend

from eyas.base.errors import EyasError
from eyas.router.relay.asking import Asking
from eyas.router.settings.schema import ModelSettings

BODY = json.dumps({"messages": [{"role": "user", "content": "what?"}]}).encode()


def asking(router: Relayed, *names: str) -> Asking:
    return Asking(ModelSettings(name="scripted", backends=names), router.manager, router.upstream)


@pytest.mark.parametrize(
    ("script", "failures"),
    [
        (Script(status=500), [("a", "status")]),
        (Script(body="{}"), [("a", "malformed")]),
        (Script(end="rst"), [("a", "broken")]),
        (Script(status=429), []),
    ],
)
def test_the_next_backend_answers(script: Script, failures: list[tuple[str, str]]) -> None:
    async def main() -> None:
        a, b = ScriptedBackend("a", script=script), ScriptedBackend("b", script=Script(text="that"))
        async with a.serving(), b.serving(), relayed(a, b) as router:
            answer = json.loads(await asking(router, "a", "b").ask(BODY))
            assert answer["choices"][0]["message"]["content"] == "that"
            assert len(a.asked) == 1 and router.failures() == failures and router.in_flight() == 0

    asyncio.run(main())


def test_a_refusal_is_no_failure_and_the_last_word() -> None:
    async def main() -> None:
        a, b = ScriptedBackend("a", script=Script(status=400, error="no such thing")), ScriptedBackend("b")
        async with a.serving(), b.serving(), relayed(a, b) as router:
            with pytest.raises(EyasError, match="a refuses: no such thing"):
                await asking(router, "a", "b").ask(BODY)
            assert not b.asked and router.failures() == [] and router.in_flight() == 0

    asyncio.run(main())


def test_a_backend_that_is_too_slow_has_failed() -> None:
    async def main() -> None:
        a, b = ScriptedBackend("a", script=Script(before_s=30)), ScriptedBackend("b", script=Script(text="that"))
        async with a.serving(), b.serving(), relayed(a, b) as router:
            began = time.monotonic()
            assert b"that" in await asking(router, "a", "b").ask(BODY, answer_s=0.3)
            assert 0.3 < time.monotonic() - began < 1 and router.in_flight() == 0
            assert router.failures() == [("a", "budget")]

    asyncio.run(main())


def test_waiting_for_a_place_is_no_failure() -> None:
    async def main() -> None:
        a = ScriptedBackend("a", script=Script(before_s=0.4))
        async with a.serving(), relayed(a) as router:
            found = await asyncio.gather(*(asking(router, "a").ask(BODY, f"c{n}", answer_s=0.7) for n in range(16)))
            assert len(found) == 16 and router.failures() == []

    asyncio.run(main())
