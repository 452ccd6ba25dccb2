"""A sound OpenAI server over the toy model, and one switch for each fault that engines have had."""

import asyncio
import itertools
import json
import math
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from tests.bench.check.support.toy_model import Token, Written, said, text_of, write

BLOCK = 16  # words of a cached block
HTML = "<html><body><h1>Bad Gateway</h1></body></html>"
LONG = 100_000  # characters of a long prompt


@dataclass
class Stub:
    """`faults` are its switches; `slots` answer at once, a token takes `token_s` where an answer is streamed."""

    faults: frozenset = frozenset()
    slots: int = 8
    token_s: float = 0.0005
    kept_s: float = 2.5  # that a slot is kept by the answer of a client that has left
    context: int | None = None
    key: str | None = None
    dies_after: int | None = None  # requests; every later connection is cut
    block_s: float = 0.0  # that reading a new block of a prompt takes
    sure: float | None = None  # probability of the best word at each place
    url: str = ""
    bodies: list = field(default_factory=list)
    cached: set = field(default_factory=set)
    running: int = 0
    written: int = 0
    draws: itertools.count = field(default_factory=itertools.count)
    newest: list = field(default_factory=list)  # tokens of the stream that began last

    def __post_init__(self):
        self.free = asyncio.Semaphore(self.slots)

    def has(self, fault):
        return fault in self.faults

    # what the model writes, with the faults of sampling, tools and forms

    def answer(self, body):
        body = dict(body)
        if self.has("temperature ignored, greedy"):
            body["temperature"] = 0
        if self.has("temperature ignored, 1"):
            body["temperature"] = 1
        for name in ("top_p", "top_k", "seed", "tool_choice", "response_format", "stop", "max_tokens"):
            if self.has(f"{name} ignored"):
                body.pop(name, None)
        if self.has("seed fixed"):
            body["seed"] = 7
        if self.has("max_tokens ignored"):
            body.pop("max_completion_tokens", None)
        if self.has("tool results lost"):
            body["messages"] = [one for one in body["messages"] if one["role"] != "tool"]
            body["messages"] = [one for one in body["messages"] if not one.get("tool_calls")] or body["messages"]
            if len(body["messages"]) < len(self.bodies[-1]["messages"]):
                body.pop("tools", None)
        if self.has("!!!!"):
            return Written([Token("!")] * 400), body
        if self.has("loop"):
            return Written([Token("and so on it goes, ")] * 100), body
        written = write(body, random_seed=f"{random.random()}/{next(self.draws)}", sure=self.sure)
        return self.spoilt(written), body

    def spoilt(self, written):
        if written.calls and self.has("tools as text"):
            name, arguments = written.calls[0]
            return Written([Token(f"<|channel|>commentary to=functions.{name}<|message|>{json.dumps(arguments)}")])
        if self.has("reasoning in content"):
            thought = [token.text for token in written.tokens if token.kind == "reasoning"]
            rest = [token for token in written.tokens if token.kind != "reasoning"]
            return Written([Token(f"<think>{''.join(thought)}</think>"), *rest], written.calls)
        if self.has("harmony in content"):
            thought = "".join(token.text for token in written.tokens if token.kind == "reasoning")
            rest = [token for token in written.tokens if token.kind != "reasoning"]
            return Written([Token(f"analysis{thought}assistantfinal"), *rest], written.calls)
        return written

    def cut(self, written, body):
        """Tokens and finish_reason after limits and stop strings."""
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 4000
        tokens, reason = written.tokens[:limit], "stop"
        if len(written.tokens) > limit:
            reason = "length"
        content = "".join(token.text for token in tokens if token.kind == "content")
        for word in body.get("stop") or ():
            if word in content:
                thought = [token for token in tokens if token.kind == "reasoning"]
                tokens, reason = [*thought, *said(content.partition(word)[0])], "stop"
        calls = written.calls if reason == "stop" else []
        return tokens, calls, "tool_calls" if calls else reason

    def usage(self, messages, num_tokens):
        words = text_of(messages).split()
        if self.has("long prompts cut"):
            words = words[:4096]
        blocks = blocks_of(words)
        known = sum(block in self.cached for block in blocks)
        self.cached.update(blocks)
        cached = 0 if self.has("no reuse") else known * BLOCK
        if self.has("all is cached"):
            cached = len(words)
        prompt = len(words) + 4
        total = prompt + num_tokens + (3 if self.has("wrong totals") else 0)
        if self.has("cached tokens not counted"):
            return {"prompt_tokens": prompt, "completion_tokens": num_tokens, "total_tokens": total}
        return {
            "prompt_tokens": prompt, "completion_tokens": num_tokens, "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": cached},
        }  # fmt: skip

    def num_new_blocks(self, messages):
        return sum(block not in self.cached for block in blocks_of(text_of(messages).split()))

    # the server

    async def models(self, request):
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return error(401, "wrong key")
        entry = {"id": "toy", "object": "model", "owned_by": "vllm"}
        return web.json_response(
            {"object": "list", "data": [entry | ({"max_model_len": self.context} if self.context else {})]}
        )

    async def metrics(self, request):
        if self.has("no metrics"):
            raise web.HTTPNotFound
        written = 0 if self.has("counters stuck") else self.written
        lines = [f"vllm:generation_tokens_total {written}"]
        if not self.has("no gauge"):
            lines.append(f"vllm:num_requests_running {self.running}")
        return web.Response(text="\n".join(lines) + "\n")

    async def chat(self, request):
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return error(401, "wrong key")
        if self.dies_after is not None and len(self.bodies) >= self.dies_after:
            request.transport.abort()
            raise web.HTTPBadRequest
        try:
            body = json.loads(await request.text())
        except ValueError:
            return self.bad("the body is not JSON")
        if not isinstance(body.get("messages"), list):
            return self.bad("'messages' is missing, or no list")
        if body["model"] != "toy" and not self.has("any model"):
            return error(404, "no such model")
        if refused := next(
            (
                name
                for name in ("tools", "logprobs", "top_k", "seed", "stream_options")
                if name in body and self.has(f"{name} refused")
            ),
            None,
        ):
            return error(400, f"{refused} is not supported")
        size = len(text_of(body["messages"]))
        if size > LONG and self.has("500 on long prompts"):
            return web.json_response({"error": {"message": "CUDA error: an illegal memory access"}}, status=500)
        if size > LONG and self.has("long prompts refused"):
            return error(400, "this model's maximum context length is 8192 tokens")
        self.bodies.append(body)
        await self.free.acquire()
        self.running += 1
        kept_s = 0.0
        try:
            if not body.get("stream"):
                await asyncio.sleep(self.block_s * self.num_new_blocks(body["messages"]))
                return self.whole(body)
            try:
                return await self.stream(request, body)
            except (ConnectionResetError, web.HTTPBadRequest):
                kept_s = self.kept_s if self.has("slots kept after a cancel") else 0.0
                return web.Response(status=400)
        finally:
            asyncio.get_running_loop().call_later(kept_s, self.release)

    def release(self):
        self.running -= 1
        self.free.release()

    def whole(self, body):
        written, body = self.answer(body)
        tokens, calls, reason = self.cut(written, body)
        self.written += len(tokens)
        content = "".join(token.text for token in tokens if token.kind == "content")
        thought = "".join(token.text for token in tokens if token.kind == "reasoning")
        message = {"role": "user" if self.has("role") else "assistant", "content": content}
        if thought and not self.has("reasoning dropped"):
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = [self.call(*call) for call in calls]
        choice = {"index": 0, "message": message, "finish_reason": reason}
        if body.get("logprobs") and not self.has("logprobs ignored"):
            choice["logprobs"] = {"content": [self.entry(token, body) for token in tokens if token.kind == "content"]}
        value = {"id": "chatcmpl-1", "object": "chat.completion", "model": "toy", "choices": [choice]}
        if not self.has("no usage"):
            value["usage"] = self.usage(body["messages"], max(1, len(tokens)))
        return web.json_response(value)

    def call(self, name, arguments):
        said = "{'box': 'amber'}" if self.has("arguments are no JSON") else json.dumps(arguments)
        return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": said}}

    def entry(self, token, body):
        rivals = token.rivals or ((token.text, 1.0),)
        sign = -1 if self.has("logprobs positive") else 1
        top = [{"token": text, "logprob": sign * math.log(p)} for text, p in rivals][: body.get("top_logprobs") or 0]
        return {"token": token.text, "logprob": sign * token.logprob, "top_logprobs": top}

    async def stream(self, request, body):
        written, body = self.answer(body)
        tokens, calls, reason = self.cut(written, body)
        response = web.StreamResponse(
            headers={"content-type": "text/html" if self.has("stream as HTML") else "text/event-stream"}
        )
        await response.prepare(request)
        self.newest = tokens
        await asyncio.sleep(self.token_s)  # reading the prompt
        if self.has("conversations mixed") and self.newest is not tokens:
            tokens = [*tokens[:-6], *self.newest[-6:]]
        await self.event(response, {"role": "assistant", "content": ""})
        if self.has("one chunk"):
            tokens = [Token("".join(token.text for token in tokens))]
        for token in tokens:
            name = "reasoning_content" if token.kind == "reasoning" else "content"
            if not (name == "reasoning_content" and self.has("reasoning dropped")):
                await self.event(response, {name: token.text})
            self.written += 1
            await asyncio.sleep(self.token_s)
            if request.transport is None or request.transport.is_closing():
                raise web.HTTPBadRequest  # the client has left: nothing more is written
        for call in calls:
            await self.event(response, {"tool_calls": [{"index": 0, **self.call(*call)}]})
        if not self.has("no finish_reason"):
            await self.event(response, {}, finish_reason=reason)
        wants = (body.get("stream_options") or {}).get("include_usage")
        if wants and not self.has("no usage"):
            usage = self.usage(body["messages"], max(1, len(tokens)))
            await self.data(response, {"object": "chat.completion.chunk", "choices": [], "usage": usage})
        if not self.has("no [DONE]"):
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def event(self, response, delta, **choice):
        chunk = {"id": "1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, **choice}]}
        await self.data(response, chunk)

    async def data(self, response, value):
        await response.write(f"data: {json.dumps(value)}\n\n".encode())

    def bad(self, message):
        if self.has("errors as HTML"):
            return web.Response(text=HTML, content_type="text/html", status=400)
        if self.has("errors with status 500"):
            return web.json_response({"error": {"message": message}}, status=500)
        if self.has("errors without an envelope"):
            return web.json_response({"detail": message}, status=422)
        return error(400, message)

    async def responses(self, request):
        if self.has("no responses"):
            raise web.HTTPNotFound
        body = json.loads(await request.text())
        content = [{"type": "output_text", "text": "Hello."}]
        value = {
            "object": "response", "status": "completed", "model": body["model"],
            "output": [] if self.has("responses without output") else [{"type": "message", "content": content}],
            "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
        }  # fmt: skip
        return web.json_response(value)


def blocks_of(words):
    """Beginnings of a prompt in whole blocks; none of a long one, which is not kept."""
    return [" ".join(words[:end]) for end in range(BLOCK, len(words) + 1, BLOCK)] if len(words) < 4096 else []


def error(status, message):
    return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=status)


@asynccontextmanager
async def serving(*faults, **settings):
    """A stub with these faults on a free port of this loop."""
    stub = Stub(frozenset(faults), **settings)
    app = web.Application(client_max_size=1 << 24)
    app.router.add_get("/v1/models", stub.models)
    app.router.add_get("/metrics", stub.metrics)
    app.router.add_post("/v1/chat/completions", stub.chat)
    app.router.add_post("/v1/responses", stub.responses)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stub
    finally:
        await runner.cleanup()
