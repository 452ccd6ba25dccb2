"""Chat templates as `transformers` renders them: ours with tools, and gpt-oss's own from llama.cpp's source."""

import json
from functools import cache
from pathlib import Path

OURS = Path(__file__).parent / "harmony_tools.jinja"
GENUINE = "models/templates/openai-gpt-oss-120b.jinja"  # in llama.cpp


@cache
def source(path: Path) -> str:
    return path.read_text()


def rendered(body: dict, template: Path = OURS) -> str:
    """Return the prompt of a chat request. As engines do, it parses arguments and names reasoning `thinking`."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = []
    for message in body["messages"]:
        message = dict(message)
        if "reasoning_content" in message:
            message["thinking"] = message.pop("reasoning_content")
            assert message.pop("reasoning") == message["thinking"]
        if calls := message.get("tool_calls"):
            assert len(calls) == 1
            function = calls[0]["function"]
            given = json.loads(function["arguments"])
            assert isinstance(given, dict)
            message["tool_calls"] = [calls[0] | {"function": function | {"arguments": given}}]
        messages.append(message)
    effort = {"reasoning_effort": body["reasoning_effort"]} if "reasoning_effort" in body else {}
    (text,), _ = render_jinja_template(
        [messages],
        tools=body.get("tools"),
        chat_template=source(template),
        add_generation_prompt=True,
        **effort,
    )
    return text
