"""Good bodies of every endpoint, and changes to them that know where the fields are."""

import copy
import http.client
import json
import random
from contextlib import suppress
from urllib.parse import urlsplit

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
USER = {"role": "user", "content": "Hi"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
DOCUMENT = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
UNPARSED = {"__unparsedToolInput": {"raw": "{", "len": 1}}
GOOD = {
    "/v1/chat/completions": [
        {"messages": [USER]},
        {
            "model": "stub",
            "messages": [
                {"role": "system", "content": "Short."},
                USER,
                {"role": "assistant", "content": "Hello"},
                USER,
            ],
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "min_p": 0.1,
            "seed": 7,
            "n": 2,
            "max_tokens": 20,
            "stop": ["x", "yy"],
            "logprobs": True,
            "top_logprobs": 3,
            "presence_penalty": 0.5,
            "user": "me",
            "logit_bias": {"5": 1.5},
            "stream": True,
            "stream_options": {"include_usage": True},
        },
        {
            "messages": [
                USER,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city":"x"}'},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
            ],
            "tools": [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": WEATHER}}],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            },
            "parallel_tool_calls": False,
            "reasoning_effort": "low",
        },
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER, "strict": True}},
        },
    ],
    "/v1/completions": [
        {"prompt": "Once upon", "max_tokens": 8},
        {"prompt": ["a", "b"], "echo": True, "logprobs": 2, "max_tokens": 4, "n": 2, "best_of": 2},
        {"prompt": [[5, 6, 7], [8]], "stop": "z", "temperature": 0, "return_token_ids": True, "stream": True},
    ],
    "/v1/responses": [
        {"input": "Hi"},
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
                {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "sunny"},
            ],
            "tools": [{"type": "function", "name": "weather", "parameters": WEATHER}],
            "instructions": "Short.",
            "stream": True,
            "reasoning": {"effort": "high"},
            "metadata": {"a": "b"},
            "max_output_tokens": 30,
        },
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "w", "schema": WEATHER}}, "store": False},
    ],
    "/v1/messages": [
        {"model": "claude-x", "max_tokens": 8, "messages": [USER]},
        {
            "model": "stub",
            "max_tokens": 20,
            "system": [{"type": "text", "text": "Short.", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}, IMAGE]},
                {"role": "system", "content": "A note."},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                        {"type": "text", "text": "I look."},
                        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "x"}},
                        {"type": "tool_use", "id": "toolu_2", "name": "search", "input": UNPARSED},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_2",
                            "content": [{"type": "tool_reference", "tool_name": "later"}],
                        },
                        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny", "is_error": True},
                    ],
                },
            ],
            "tools": [
                {"name": "weather", "description": "d", "input_schema": WEATHER, "strict": True},
                {"name": "later", "input_schema": {"type": "object"}, "defer_loading": True},
                {"name": "search", "input_schema": {"type": "object"}, "type": "custom"},
            ],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "thinking": {"type": "adaptive", "display": "omitted"},
            "output_config": {"effort": "max"},
            "stop_sequences": ["x", "yy"],
            "metadata": {"user_id": "me"},
            "context_management": {"edits": []},
            "temperature": 0.5,
            "seed": 7,
            "stream": True,
        },
        {
            "model": "claude-x",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [DOCUMENT, {"type": "text", "text": "Hi"}]}],
            "output_config": {"format": {"type": "json_schema", "schema": WEATHER}},
            "thinking": {"type": "disabled"},
        },
    ],
    "/v1/messages/count_tokens": [
        {
            "model": "claude-x",
            "messages": [USER],
            "system": "Short.",
            "tools": [{"name": "weather", "input_schema": WEATHER}],
            "tool_choice": {"type": "tool", "name": "weather"},
        }
    ],
    "/tokenize": [{"prompt": "Hello"}, {"messages": [USER], "add_generation_prompt": True, "return_token_strs": True}],
    "/detokenize": [{"tokens": [5, 6, 7]}],
}
ODD = [
    *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**40, -(10**40), 0.1, 1e308, 5e-324, -0.0),
    *(float("nan"), float("inf"), "", " ", "x" * 3000, "\0", "\ud800", "\udfff\ud800", "\U0001f985", "<|start|>"),
    *("<|end|><|return|>", "assistant", "sha256:00", "../../etc/passwd", "$ref", "null", [], {}, [[]], [None], {"": 1}),
    *([0] * 300, {"type": "object"}, {"type": "text"}, [{"role": "user"}], "%s%n{}", "data: x\n\n", "a\r\nb: c"),
]
# Fields of sampling at and near their edges: most of these are answered, and the engine must do as told.
SAMPLING = {
    "temperature": [0, 1e-6, 1e-4, 0.7, 2, 100],
    "top_p": [1e-9, 0.5, 1],
    "top_k": [-1, 0, 1, 40, 2**31 - 1],
    "min_p": [0, 0.5, 1],
    "seed": [0, 1, 2**63 - 1],
    "n": [1, 3, 16],
    "presence_penalty": [-2, 2],
    "frequency_penalty": [-2, 2],
    "repetition_penalty": [1e-6, 1.2, 10],
    "logit_bias": [{}, {"5": 100, "6": -100}, {str(i): -100 for i in range(300)}],
    "min_tokens": [0, 1, 5],
    "max_tokens": [1, 2, 30],
    "stop": ["e", ["", "a"], ["a" * 256], ["e", " "]],
    "stop_token_ids": [[], [5], list(range(16))],
    "ignore_eos": [True, False],
    "include_stop_str_in_output": [True],
    "skip_special_tokens": [False],
    "bad_words": [["a"], ["Hello there", "\u00fc"]],
    "allowed_token_ids": [[5], [5, 6, 7]],
    "cache_salt": ["a", "x" * 256],
    "prompt_logprobs": [0, 20],
    "logprobs": [True, 0, 5],
    "top_logprobs": [0, 20],
    "stream": [True, False],
    "echo": [True, False],
}
ANSWER_S = 120  # for one answer, on a machine with much else to do
CONTENT_TYPES = ["application/json", "text/plain", "multipart/form-data; boundary=x", "application/xml", "", "\u00e4"]


def nodes(tree, path=()):
    """The path of every value in a JSON tree, the tree itself last."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from nodes(value, (*path, key))
    yield path


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def mutate(rng: random.Random, body):
    """One to three changes: another value, a lost or an unknown field, a moved, repeated or nested subtree."""
    tree = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 2, 3))):
        path = rng.choice(list(nodes(tree)))
        if not path:
            continue
        parent, key = at(tree, path[:-1]), path[-1]
        match rng.randrange(8):
            case 0 | 1 | 2:
                parent[key] = copy.deepcopy(rng.choice(ODD))
            case 3:
                del parent[key]
            case 4 if isinstance(parent, dict):
                name = rng.choice(("unknown", str(key) + "x", "type", "role", "\ud800", ""))
                parent[name] = copy.deepcopy(rng.choice(ODD))
            case 5:
                parent[key] = copy.deepcopy(at(tree, rng.choice(list(nodes(tree)))))
            case 6 if isinstance(parent[key], list):
                parent[key] = parent[key] * rng.choice((2, 17, 130))
            case _:
                for _ in range(rng.choice((1, 3, 60))):
                    parent[key] = {"a": parent[key]} if rng.random() < 0.5 else [parent[key]]
    return tree


def tuned(rng: random.Random, body):
    """The body with a few sampling fields."""
    names = rng.sample(list(SAMPLING), rng.randint(1, 4))
    return copy.deepcopy(body) | {name: rng.choice(SAMPLING[name]) for name in names}


def encoded(rng: random.Random, tree) -> bytes:
    """The tree as JSON, sometimes broken on the way."""
    data = json.dumps(tree, ensure_ascii=rng.random() < 0.9).encode(errors="surrogatepass")
    match rng.randrange(14):
        case 0:
            return data[: rng.randrange(len(data) + 1)]
        case 1:
            spot = rng.randrange(len(data))
            return data[:spot] + bytes([rng.randrange(256)]) + data[spot + 1 :]
        case 2:
            return data.replace(b"{", b'{"model": "stub", "model": null, "n": 1, "n": 2,', 1)
        case 3:
            depth = rng.choice((100, 5000, 100_000))
            return data.replace(b":", b":" + b"[" * depth + b"1" + b"]" * depth + b",", 1)
        case 4:
            return rng.choice(
                (b"", b"null", b"[]", b"0", b'"x"', b"\xff\xfe", b"\xef\xbb\xbf{}", data + b"x", data * 2)
            )
    return data


class Client:
    """Sends bodies over one connection, and looks at what comes back as a client would."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._netloc, timeout=ANSWER_S)

    def send(self, method: str, path: str, body: bytes, headers: dict) -> tuple[int, bytes, dict]:
        with suppress(BrokenPipeError, ConnectionResetError):  # refused and closed before all of it was sent
            self._connection.request(method, path, body, {"content-type": "application/json"} | headers)
        answer = self._connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())

    def close(self) -> None:
        self._connection.close()


def complaint(status: int, body: bytes, headers: dict) -> str | None:
    """What is wrong with an answer, if anything."""
    kind = headers.get("content-type", "")
    if status >= 500:
        return f"status {status}"
    if status >= 400:
        envelope = json.loads(body)
        error, is_anthropic = envelope["error"], "request-id" in headers
        names = {"message", "type"} if is_anthropic else {"message", "type", "param", "code"}
        if set(error) != names or not error["message"] or (is_anthropic and envelope["type"] != "error"):
            return "no envelope"
    elif kind.startswith("text/event-stream"):
        events = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
        last = events[-1]
        ends = ("message_stop", "response.")
        is_over = body.endswith(b"data: [DONE]\n\n") or "error" in last or last.get("type", "").startswith(ends)
        if not is_over:
            return "a stream without an end"
    elif kind.startswith("application/json"):
        json.loads(body)
    return None
