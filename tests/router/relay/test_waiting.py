"""While a stream waits, its client hears why; what a backend sends before its first content is held back."""

import asyncio

import pytest
from tests.router.support.asking import PATHS, ask
from tests.router.support.relayed import relayed
from tests.router.support.scripted import Script, ScriptedBackend

from eyas.base.serving.budgets import Budgets
from eyas.base.serving.waiting import Waiting, waiting_of
from eyas.router.manager.condition import Condition


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyas.router.relay.client.FIRST_COMMENT_S", 0.2)
    monkeypatch.setattr("eyas.router.relay.client.COMMENT_EVERY_S", 0.2)


def heard(comments: list[str]) -> list[Waiting | None]:
    return [waiting_of(comment.encode()) for comment in comments]


@pytest.mark.parametrize("path", PATHS)
def test_a_slow_prompt_is_commented_on_and_then_answered(path: str) -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True)
        async with backend.serving(), relayed(backend) as router:
            script = {"mark": "m1", "first_s": 0.7, "noise_s": 0.05}
            got = await ask(router.session, router.url, script, path=path)
            assert got.outcome == "done"
            assert got.what_is_wrong() is None
            assert set(got.comments) == {': eyas {"state":"reading","backend":"a"}'}
            assert 2 <= len(got.comments) <= 3
            assert b"ping" not in got.raw
            first = next(line for line in got.raw.split(b"\n\n") if not line.startswith(b":"))
            opening = {
                "/v1/chat/completions": b'"role"',
                "/v1/completions": b'"text":""',
                "/v1/responses": b"response.created",
                "/v1/messages": b"message_start",
            }
            assert opening[path] in first

    asyncio.run(main())


def test_a_quick_answer_has_no_comments_and_all_headers() -> None:
    async def main() -> None:
        backend = ScriptedBackend()
        async with backend.serving(), relayed(backend) as router:
            got = await ask(router.session, router.url, {"mark": "m1"})
            assert (got.comments, got.backend) == ([], "a")
            assert got.headers["content-type"].startswith("text/event-stream")
            assert got.headers["cache-control"] == "no-cache"

    asyncio.run(main())


def test_states_follow_one_another() -> None:
    async def main() -> None:
        backend = ScriptedBackend(script=Script(first_s=0.4))
        async with backend.serving(), relayed(backend) as router:
            router.manager.report("a", Condition(state="loading", eta_s=40.0))
            asking = asyncio.create_task(ask(router.session, router.url, {"mark": "m1"}))
            await asyncio.sleep(0.5)
            router.manager.report("a", Condition(state="ready"))
            got = await asking
            assert got.outcome == "done"
            states = [waiting.state if waiting is not None else "" for waiting in heard(got.comments)]
            assert list(dict.fromkeys(states)) == ["loading", "reading"]
            assert (last := heard(got.comments)[-1]) is not None and last.backend == "a"
            assert "x-eyas-backend" not in got.headers  # it was not known when they went

    asyncio.run(main())


@pytest.mark.parametrize("path", PATHS)
def test_after_comments_a_refusal_is_an_event(path: str) -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True)
        budgets = Budgets(prefill_s=5, stall_s=5)
        async with backend.serving(), relayed(backend, budgets=budgets) as router:
            for script, message in (
                ({"before_s": 0.5, "status": 400, "error": "no tools"}, "no tools"),
                ({"before_s": 0.5, "status": 500}, "failed (status)"),
            ):
                got = await ask(router.session, router.url, script, path=path)
                assert (got.status, got.outcome) == (200, "error")
                assert message in got.message
                assert got.comments
            assert [one.status for one in await router.reported(2)] == [400, 503]

    asyncio.run(main())


def test_the_last_comment_before_an_answer_names_its_backend() -> None:
    """The headers went while the first one was asked."""

    async def main() -> None:
        backends = [ScriptedBackend(name) for name in "ab"]
        async with backends[0].serving(), backends[1].serving(), relayed(*backends) as router:
            script = {"mark": "m1", "sign": True, "on": {"a": {"before_s": 0.5, "status": 500}}}
            got = await ask(router.session, router.url, script)
            assert (got.outcome, got.backend) == ("done", "b")
            named = [waiting.backend for waiting in heard(got.comments) if waiting is not None]
            assert (named[0], named[-1]) == ("a", "b")

    asyncio.run(main())


def test_a_whole_answer_has_no_comments() -> None:
    async def main() -> None:
        backend = ScriptedBackend()
        async with backend.serving(), relayed(backend) as router:
            got = await ask(router.session, router.url, {"mark": "m1", "before_s": 0.5}, stream=False)
            assert (got.outcome, got.raw.startswith(b"{")) == ("done", True)

    asyncio.run(main())
