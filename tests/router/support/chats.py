"""Random answers of chat endpoints: what a model said, as the chunks of the engines with all their habits."""

import json
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import strategies as st

TEXT = st.text(st.sampled_from('ab <|>\n\u2060\u00fc\U0001f985\\"{}'), min_size=1, max_size=12)
ARGUMENTS = st.one_of(
    st.dictionaries(st.sampled_from(["city", "b"]), st.one_of(st.integers(), TEXT), max_size=2).map(json.dumps),
    st.sampled_from(["", "{", "[1]", '{"a": "<|\u2060end|>"}', '{"a": "<|\\u2060end|>"}']),
)


@dataclass
class Answer:
    """`said` are messages in the order in which they begin: (kind, text) or ("call", name, arguments)."""

    said: list[tuple]
    finish: str = "stop"
    usage: dict | None = None
    chunks: list[dict] = field(default_factory=list)
    has_done: bool = True
    newline: str = "\n"

    @property
    def raw(self) -> bytes:
        """The stream."""
        end = self.newline * 2
        events = [f"data: {json.dumps(chunk, ensure_ascii=False)}{end}" for chunk in self.chunks]
        return "".join([*events, *([f"data: [DONE]{end}"] if self.has_done else [])]).encode()

    @property
    def whole(self) -> dict:
        """The same answer, whole."""
        kinds = {kind: "".join(one[1] for one in self.said if one[0] == kind) for kind in ("reasoning", "content")}
        message: dict = {"role": "assistant", "content": kinds["content"] or None}
        if kinds["reasoning"]:
            message["reasoning_content"] = kinds["reasoning"]
        calls = [one for one in self.said if one[0] == "call"]
        if calls:
            message["tool_calls"] = [
                {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
                for _, name, arguments in calls
            ]
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        return {"object": "chat.completion", "choices": [choice], "usage": self.usage or {}}


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """Draw an answer: reasoning and content in turns, then calls; its chunks may mix the arguments of calls."""
    kinds = draw(
        st.sampled_from([(), ("reasoning",), ("content",), ("reasoning", "content"), ("content", "reasoning")])
    )
    said: list[tuple] = [(kind, draw(TEXT)) for kind in kinds]
    names = draw(st.lists(st.sampled_from(["get_weather", "clock", "unknown"]), max_size=3))
    said += [("call", name, draw(ARGUMENTS)) for name in names]
    answer = Answer(said, finish=draw(st.sampled_from(["tool_calls", "stop"])) if names else "stop")
    answer.has_done = draw(st.booleans())
    answer.newline = draw(st.sampled_from(["\n", "\r\n"]))
    kind_of_usage = draw(st.sampled_from(["none", "last", "every"]))
    if kind_of_usage != "none":
        answer.usage = {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}
    deltas = [*texts(draw, said), *calls(draw, said)]
    if draw(st.booleans()) or not deltas:
        deltas.insert(0, {"role": "assistant", "content": draw(st.sampled_from([None, ""]))})
    is_late = draw(st.booleans())  # the reason comes in a chunk of its own, or with the last text
    for number, delta in enumerate(deltas):
        finish = answer.finish if number == len(deltas) - 1 and not is_late else None
        answer.chunks.append({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    if is_late:
        answer.chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": answer.finish}]})
    if draw(st.booleans()):  # some have a last chunk with nothing in it
        answer.chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": None}]})
    if kind_of_usage == "last":
        answer.chunks.append({"choices": [], "usage": answer.usage})
    elif kind_of_usage == "every":
        for chunk in answer.chunks:
            chunk["usage"] = answer.usage
    return answer


def texts(draw: st.DrawFn, said: list[tuple]) -> list[dict]:
    names = {"content": ("content",), "reasoning": draw(st.sampled_from(REASONING))}
    found = []
    for kind, text in [one for one in said if one[0] != "call"]:
        found += [dict.fromkeys(names[kind], part) for part in cut(draw, text)]
    return found


REASONING = [("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")]


def calls(draw: st.DrawFn, said: list[tuple]) -> list[dict]:
    """Return deltas of the calls: each whole in one, or in parts that stand between those of others."""
    todo = []
    for index, (_, name, arguments) in enumerate(one for one in said if one[0] == "call"):
        head = {"index": index, "id": "call_0", "type": "function", "function": {"name": name, "arguments": ""}}
        parts = (
            [{"index": index, "function": {"arguments": part}} for part in cut(draw, arguments)] if arguments else []
        )
        if parts and draw(st.booleans()):
            head["function"]["arguments"] = arguments
            parts = []
        todo.append([head, *parts])
    found = []
    begun = 0
    while any(todo):
        may = [i for i, parts in enumerate(todo) if parts and i <= begun]
        chosen = draw(st.sampled_from(may))
        begun = max(begun, chosen + 1)
        found.append({"tool_calls": [todo[chosen].pop(0)]})
    return found


def cut(draw: st.DrawFn, text: str) -> list[str]:
    """Return the text in parts."""
    places = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=4)))
    bounds = [0, *places, len(text)]
    return [text[a:b] for a, b in pairwise(bounds) if text[a:b]]


@st.composite
def pieces(draw: st.DrawFn, raw: bytes) -> list[bytes]:
    """Draw the same bytes in chunks of any size."""
    places = sorted(draw(st.sets(st.integers(0, len(raw)), max_size=8)))
    bounds = [0, *places, len(raw)]
    return [raw[a:b] for a, b in pairwise(bounds)]
