"""Answers to what is asked beside the model: the list of models, stored responses, the tokens of a prompt."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope

from eyas.gateway.http.errors import Refused
from eyas.router.manager.visit import NoBackend
from eyas.router.messages.counting import Counting, has_count, tokens_of
from eyas.router.relay.body import Body
from eyas.router.relay.client import Client
from eyas.router.relay.names import MESSAGES
from eyas.router.relay.refusals import Full, read_refusal
from eyas.router.relay.shared import Shared
from eyas.router.relay.wish import find_response, owner_of
from eyas.router.upstream.errors import UpstreamError

__all__ = ["COUNT_PATH", "TOKENIZE_PATH", "answer_count", "answer_json", "answer_stored", "answer_tokens"]

COUNT_PATH = f"{MESSAGES}/count_tokens"
TOKENIZE_PATH = "/tokenize"
TIMEOUT_S = 30.0
JSON = (b"content-type", b"application/json")


async def answer_json(client: Client, value: object) -> None:
    """Answer with something that is known here."""
    await client.answer(200, [JSON], msgspec.json.encode(value))


async def answer_stored(shared: Shared, scope: Scope, client: Client, method: str, response_id: str) -> str:
    """Get or delete a stored response where it is, and return its backend. Raises Refused, NoBackend."""
    backends = tuple(backend.name for backend in shared.settings.backends)
    backend = await find_response(shared, response_id, owner_of(scope), backends)
    if backend is None:
        raise Refused(f"there is no response '{response_id}'", code="response_not_found", status=404)
    query = scope["query_string"].decode("ascii", "replace")
    path = f"/v1/responses/{response_id}" + (f"?{query}" if query else "")
    by = (b"x-eyas-backend", backend.encode("ascii", "replace"))
    try:
        async with shared.upstream.send(backend, method, path, timeout_s=TIMEOUT_S) as reply:
            if 200 <= reply.status < 300:
                body = await reply.read()
                if method == "DELETE":
                    shared.stored.forget(response_id)
                await client.answer(reply.status, [*reply.headers, by], body)
            else:
                passed = await read_refusal(reply, shared.upstream.address(backend).key)
                await client.answer(passed.status, [*passed.headers, by], passed.body)
    except UpstreamError as error:
        raise NoBackend(f"{backend}, which keeps the response, failed: {error.detail}", 503) from error
    except Full as full:
        message = f"{backend}, which keeps the response, has no room"
        raise NoBackend(message, 429, retry_after_s=full.retry_after_s) from full
    return backend


async def answer_count(shared: Shared, scope: Scope, receive: Receive, client: Client) -> None:
    """Answer how many tokens a prompt of `/v1/messages` has: as a backend says, else by a guess. Raises InvalidRequest.

    This takes no place in a queue: nothing is generated.
    """
    async with shared.intake.body(HttpRequest(scope, receive)) as raw:
        body = Body.of(raw)
        named = shared.names.meaning(body.text("model"), COUNT_PATH)
        model = named.model or shared.names.resident
        for backend in _answering(shared, model):
            name = shared.model_at(backend, model)
            with suppress(UpstreamError, Full):
                if not shared.is_ours(backend):
                    return await answer_json(client, {"input_tokens": await _counted(shared, backend, raw, name)})
                sent = body.encoded(name)
                async with shared.upstream.send(backend, "POST", COUNT_PATH, body=sent, timeout_s=TIMEOUT_S) as reply:
                    if reply.status != 200:
                        passed = await read_refusal(reply, shared.upstream.address(backend).key)
                        return await client.answer(passed.status, passed.headers, passed.body)
                    return await client.answer(200, reply.headers, await reply.read())
        await answer_json(client, {"input_tokens": Counting.of(raw).estimate()})


async def answer_tokens(shared: Shared, scope: Scope, receive: Receive, client: Client) -> None:
    """Answer `/tokenize` in vLLM's format, by a backend of the model. Raises InvalidRequest, NoBackend.

    llama-server reads `content` where the others read `prompt`: without one it answers with no tokens and no count.
    """
    async with shared.intake.body(HttpRequest(scope, receive)) as raw:
        body = Body.of(raw)
        prompt = body.text("prompt")
        model = shared.names.meaning(body.text("model"), TOKENIZE_PATH).model or shared.names.resident
        for backend in _answering(shared, model):
            bodies = [body.encoded(shared.model_at(backend, model))]
            if prompt is not None and not shared.is_ours(backend):
                bodies.append(msgspec.json.encode({"content": prompt, "add_special": False, "parse_special": False}))
            for sent in bodies:
                with suppress(UpstreamError, Full):
                    async with shared.upstream.send(
                        backend, "POST", TOKENIZE_PATH, body=sent, timeout_s=TIMEOUT_S
                    ) as reply:
                        if reply.status == 200 and has_count(answer := await reply.read()):
                            return await client.answer(200, reply.headers, answer)
                        if reply.status == 200 and sent is not bodies[0] and (tokens := tokens_of(answer)) is not None:
                            return await answer_json(client, {"count": len(tokens), "tokens": tokens})
                        if reply.status != 200 and shared.is_ours(backend):
                            passed = await read_refusal(reply, shared.upstream.address(backend).key)
                            return await client.answer(passed.status, passed.headers, passed.body)
        raise NoBackend(f"no backend of '{model}' counts tokens now", 503)


def _answering(shared: Shared, model: str) -> list[str]:
    """Return the backends of a model that can answer now."""
    found = shared.manager.snapshot().backends
    return [
        name
        for name in shared.names.model(model).backends
        if found[name].condition.state not in ("loading", "out") and found[name].breaker != "open"
    ]


async def _counted(shared: Shared, backend: str, raw: bytearray, model: str) -> int:
    """Return how many tokens a backend with a chat endpoint makes of a prompt."""

    async def ask(path: str, body: bytes) -> bytes | None:
        try:
            async with shared.upstream.send(backend, "POST", path, body=body, timeout_s=TIMEOUT_S) as reply:
                return await reply.read() if reply.status == 200 else None
        except UpstreamError:
            return None

    return await Counting.of(raw).tokens(ask, model)
