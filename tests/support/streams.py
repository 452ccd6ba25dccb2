"""Streamed chat completions as a scripted endpoint sends them."""

import json
from collections.abc import Iterable
from typing import Any

from tests.train.regeneration.support.scripted import Reply

__all__ = ["streamed"]


def streamed(*texts: str, reasoning: str = "", calls: Iterable[tuple[str, str]] = (), finish: str = "") -> Reply:
    """An answer in chunks. `calls` are pairs of name and arguments, which come in two halves."""
    made = list(calls)
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    if reasoning:
        deltas.append({"reasoning_content": reasoning})
    deltas += [{"content": text} for text in texts]
    for index, (name, arguments) in enumerate(made):
        half = len(arguments) // 2
        function = {"name": name, "arguments": arguments[:half]}
        deltas.append(
            {"tool_calls": [{"index": index, "id": f"call_{index}", "type": "function", "function": function}]}
        )
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": arguments[half:]}}]})
    events: list[Any] = [{"model": "target", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    reason = finish or ("tool_calls" if made else "stop")
    events.append({"model": "target", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    events.append({"model": "target", "choices": [], "usage": usage})
    lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
    return Reply("".join(lines), headers={"content-type": "text/event-stream"})
