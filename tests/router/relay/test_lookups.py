"""Models, stored responses, counts of tokens, sessions and embeddings."""

import asyncio
import json
from dataclasses import replace
from typing import Any

from tests.router.support.asking import PATHS, ask
from tests.router.support.relayed import Relayed, relayed, settings_of
from tests.router.support.scripted import ScriptedBackend

from eyas.router.manager.condition import Condition
from eyas.router.settings.schema import ModelSettings, RouteSettings, ServerSettings

JSON = {"Content-Type": "application/json"}


async def got(router: Relayed, path: str, *, method: str = "GET", key: str | None = None) -> tuple[int, Any]:
    headers = {"x-api-key": key} if key else {}
    async with router.session.request(method, router.url + path, headers=headers) as response:
        return response.status, await response.json()


def test_models_and_routes_are_listed() -> None:
    async def main() -> None:
        backend = ScriptedBackend()
        async with backend.serving():
            settings = settings_of([backend], routes=(RouteSettings(name="MATH", effort="high"),))
            settings = replace(settings, models=(*settings.models, ModelSettings(name="org/b", backends=("a",))))
            async with relayed(backend, settings=settings) as router:
                status, page = await got(router, "/v1/models?limit=1000")
                names = [entry["id"] for entry in page["data"]]
                assert names == ["scripted", "claude-scripted", "org/b", "claude-org/b", "route/MATH", "route/auto"]
                assert (status, page["object"], page["has_more"]) == (200, "list", False)
                assert {entry["owned_by"] for entry in page["data"]} == {"eyas"}
                for name in ("org/b", "org%2Fb", "claude-scripted", "route/MATH"):
                    assert (await got(router, f"/v1/models/{name}"))[0] == 200
                status, said = await got(router, "/v1/models/scriptid")
                assert (status, "did you mean 'scripted'" in said["error"]["message"]) == (404, True)
                assert await got(router, "/api/hello") == (200, {"message": "hello"})

    asyncio.run(main())


def test_anthropics_names_mean_the_resident_model_for_messages_only() -> None:
    async def main() -> None:
        backend = ScriptedBackend(is_ours=True)
        async with backend.serving(), relayed(backend) as router:
            for path in PATHS:
                answer = await ask(router.session, router.url, {"mark": "m1"}, path=path, model="claude-opus-9")
                assert answer.status == (200 if path == "/v1/messages" else 404)
            assert (await ask(router.session, router.url, {}, model="claude-scripted")).status == 200
            assert [one.json["model"] for one in backend.asked] == ["scripted", "scripted"]

    asyncio.run(main())


def test_without_a_name_the_resident_model_is_meant() -> None:
    async def main() -> None:
        backend = ScriptedBackend()
        async with backend.serving(), relayed(backend) as router:
            body = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
            async with router.session.post(router.url + PATHS[0], data=body, headers=JSON) as response:
                assert response.status == 200
            router.manager.report("a", Condition(state="ready", model="its-own-name"))
            async with router.session.post(router.url + PATHS[0], data=body, headers=JSON) as response:
                assert response.status == 200
        assert [one.json["model"] for one in backend.asked] == ["scripted", "its-own-name"]

    asyncio.run(main())


def test_a_stored_response_stays_where_it_is() -> None:
    async def main() -> None:
        backends = [ScriptedBackend(name) for name in "ab"]
        async with backends[0].serving(), backends[1].serving(), relayed(*backends) as router:
            for number, stream in enumerate((True, False)):
                router.manager.report("a", Condition(state="loading"))
                script = {"mark": f"m{number}"}
                answer = await ask(router.session, router.url, script, path="/v1/responses", stream=stream)
                assert answer.backend == "b"
                router.manager.report("a", Condition(state="ready"))
                previous = {"previous_response_id": f"resp_m{number}"}
                answer = await ask(router.session, router.url, {"mark": "x"}, path="/v1/responses", **previous)
                assert answer.backend == "b"
                status, said = await got(router, f"/v1/responses/resp_m{number}")
                assert (status, said["id"]) == (200, f"resp_m{number}")
                status, said = await got(router, f"/v1/responses/resp_m{number}?stream=true&x=1")
                assert (status, said["error"]["message"]) == (400, "stream=true&x=1")
            assert (await got(router, "/v1/responses/resp_m0", method="DELETE"))[1]["deleted"]
            assert (await got(router, "/v1/responses/resp_m0"))[0] == 404
            failing = {"mark": "y", "on": {"b": {"status": 500}}}
            answer = await ask(router.session, router.url, failing, path="/v1/responses", **previous)
            assert answer.status == 503  # the other cannot continue it
            assert backends[0].asked == []

    asyncio.run(main())


def test_a_stored_response_is_found_after_a_restart() -> None:
    async def main() -> None:
        backends = [ScriptedBackend(name) for name in "ab"]
        async with backends[0].serving(), backends[1].serving():
            async with relayed(*backends) as router:
                script = {"mark": "m1", "on": {"a": {"status": 500}}}
                await ask(router.session, router.url, script, path="/v1/responses", stream=False)
            async with relayed(*backends) as router:
                assert (await got(router, "/v1/responses/resp_m1"))[0] == 200
                previous = {"previous_response_id": "resp_m1"}
                answer = await ask(router.session, router.url, {"mark": "x"}, path="/v1/responses", **previous)
                assert answer.backend == "b"
                assert (await got(router, "/v1/responses/resp_nobodys"))[0] == 404

    asyncio.run(main())


def test_a_stored_response_whose_backend_fails() -> None:
    async def main() -> None:
        backend = ScriptedBackend()
        async with backend.serving(), relayed(backend) as router:
            await ask(router.session, router.url, {"mark": "m1"}, path="/v1/responses")
            backend.key = "another"
            status, said = await got(router, "/v1/responses/resp_m1")
            assert (status, said["error"]["code"]) == (503, "unavailable")
            assert said["error"]["type"] == "service_unavailable_error"  # as where it is asked to generate

    asyncio.run(main())


def test_a_stored_response_belongs_to_the_key_that_asked_for_it() -> None:
    async def main() -> None:
        backend = ScriptedBackend()
        async with backend.serving():
            settings = settings_of([backend], server=ServerSettings(api_key="key-1,key-2"))
            async with relayed(backend, settings=settings) as router:
                for stream in (True, False):
                    script = {"mark": f"m{stream:d}"}
                    headers = {"x-api-key": "key-1"}
                    path, name = "/v1/responses", f"resp_m{stream:d}"
                    await ask(router.session, router.url, script, path=path, stream=stream, headers=headers)
                    assert (await got(router, f"/v1/responses/{name}", key="key-1"))[0] == 200
                    for method in ("GET", "DELETE"):
                        assert (await got(router, f"/v1/responses/{name}", key="key-2", method=method))[0] == 404
                    other = {"x-api-key": "key-2"}
                    previous = {"previous_response_id": name}
                    answer = await ask(router.session, router.url, {}, path=path, headers=other, **previous)
                    assert answer.status == 404

    asyncio.run(main())


def test_a_session_stays_with_its_backend() -> None:
    async def main() -> None:
        backends = [ScriptedBackend(name) for name in "ab"]
        async with backends[0].serving(), backends[1].serving(), relayed(*backends) as router:
            sessions: list[dict[str, Any]] = [
                {"headers": {"x-claude-code-session-id": "s1"}},
                {"headers": {"x-session-id": "s2"}},
                {"prompt_cache_key": "s3"},
            ]
            router.manager.report("a", Condition(state="loading"))
            for session in sessions:
                assert (await ask(router.session, router.url, {}, **session)).backend == "b"
            router.manager.report("a", Condition(state="ready"))
            for session in sessions:
                assert (await ask(router.session, router.url, {}, **session)).backend == "b"
            assert (await ask(router.session, router.url, {})).backend == "a"

    asyncio.run(main())


def test_tokens_are_counted_by_a_backend_or_guessed() -> None:
    asked = {"model": "scripted", "messages": [{"role": "user", "content": "one two three"}]}
    body = json.dumps(asked, separators=(",", ":"))

    async def count(router: Relayed) -> tuple[int, int]:
        path = "/v1/messages/count_tokens"
        async with router.session.post(router.url + path, data=body, headers=JSON) as response:
            return response.status, (await response.json())["input_tokens"]

    async def main() -> None:
        ours, other = ScriptedBackend("a", is_ours=True), ScriptedBackend("b")
        async with ours.serving(), relayed(ours) as router:
            assert await count(router) == (200, len(body.split()))
        async with other.serving(), relayed(other) as router:
            status, number = await count(router)
            assert (status, 1 <= number <= 30) == (200, True)
        async with relayed(other) as router:  # nobody listens there
            status, number = await count(router)
            assert (status, 5 <= number <= 40) == (200, True)

    asyncio.run(main())


def test_texts_are_tokenized_by_a_backend_of_their_model() -> None:
    """In vLLM's format, and in llama-server's."""

    async def tokens(router: Relayed, body: object) -> tuple[int, Any]:
        async with router.session.post(router.url + "/tokenize", json=body) as response:
            return response.status, await response.json()

    async def main() -> None:
        ours, llama = ScriptedBackend("a", is_ours=True), ScriptedBackend("b", tokenizes_content=True)
        async with ours.serving(), relayed(ours) as router:
            assert (await tokens(router, {"model": "scripted", "prompt": "one two three"}))[1]["count"] == 3
            assert (await tokens(router, {"prompt": "one two"})) == (
                200,
                {"count": 2, "max_model_len": 4096, "tokens": [0, 1]},
            )
            status, said = await tokens(router, {"model": "scripted", "prompt": 3})
            assert (status, "'prompt' must be a string" in said["error"]["message"]) == (400, True)
            assert (await tokens(router, {"model": "other", "prompt": "x"}))[0] == 404
        async with llama.serving(), relayed(llama) as router:
            assert await tokens(router, {"model": "scripted", "prompt": "one two three"}) == (
                200,
                {"count": 3, "tokens": [0, 1, 2]},
            )
        async with relayed(llama) as router:  # its backend does not listen
            status, said = await tokens(router, {"model": "scripted", "prompt": "x"})
            assert (status, "counts tokens now" in said["error"]["message"]) == (503, True)

    asyncio.run(main())


def test_embeddings() -> None:
    async def main() -> None:
        backends = [ScriptedBackend(name) for name in "ab"]
        async with backends[0].serving(), backends[1].serving(), relayed(*backends) as router:
            backends[0].script = backends[0].script.__class__(status=500)
            body = json.dumps({"model": "scripted", "input": ["x", "y"]})
            async with router.session.post(router.url + "/v1/embeddings", data=body, headers=JSON) as response:
                assert (response.status, response.headers["x-eyas-backend"]) == (200, "b")
                assert len((await response.json())["data"]) == 2

    asyncio.run(main())
