"""Harmony, the text format of gpt-oss: messages to token ids. `base/harmony/parser.py` does the reverse.

One message is `<|start|>{author}[ to={recipient}][<|channel|>{channel}][ {content type}]<|message|>{content}<|end|>`.
Written from OpenAI's format description; the test oracle is `openai-harmony`. Knows nothing of HTTP or of engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from eyas.base.errors import InvalidRequest
from eyas.base.harmony.tools import (
    FUNCTIONS,
    FunctionTool,
    ResponseFormat,
    ToolNamespace,
    response_formats_section,
    tools_section,
)
from eyas.base.tokens.tokenizer import CONTROL_TOKENS, TextCodec

__all__ = [
    "CHANNELS",
    "ROLES",
    "Effort",
    "Message",
    "MessageIds",
    "Role",
    "call_message",
    "developer_message",
    "is_final",
    "message_ids",
    "opener_ids",
    "render_conversation",
    "render_message",
    "result_message",
    "stays",
    "stop_ids",
    "system_message",
    "visible_messages",
]

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
Effort: TypeAlias = Literal["low", "medium", "high"]

START, MESSAGE, CHANNEL, CONSTRAIN, END, RETURN, CALL = CONTROL_TOKENS
ROLES: tuple[Role, ...] = get_args(Role)
CHANNELS = ("analysis", "commentary", "final")
IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One message. `name` is the author's: required for role "tool" (e.g. "functions.get_weather"), optional else.

    `recipient` names who is called (a tool) or answered ("assistant"). `content_type` is a word such as "json", or
    "<|constrain|>json", which renders the special token. Header fields are rendered as they are: callers check
    that fields from outside hold no white space.
    """

    role: Role
    content: str
    channel: str | None = None
    recipient: str | None = None
    name: str | None = None
    content_type: str | None = None


def system_message(
    *,
    identity: str | None = IDENTITY,
    knowledge_cutoff: str | None = "2024-06",
    date: str | None = None,
    effort: Effort | None = "medium",
    channels: Sequence[str] = CHANNELS,
    has_functions: bool = False,
    tools: Sequence[ToolNamespace] = (),
) -> Message:
    """Return the system message that gpt-oss is trained on; None or () leaves a line out. `date` is YYYY-MM-DD.

    `has_functions` adds the line that sends function calls to the commentary channel: set it if the developer message
    declares functions. `tools` are those that gpt-oss was trained with (`BROWSER`, `PYTHON`). The system prompt of an
    API's user belongs in `developer_message`.
    """
    top = [identity] if identity is not None else []
    if knowledge_cutoff is not None:
        top.append(f"Knowledge cutoff: {knowledge_cutoff}")
    if date is not None:
        top.append(f"Current date: {date}")
    sections = ["\n".join(top)] if top else []
    if effort is not None:
        sections.append(f"Reasoning: {effort}")
    if tools:
        sections.append(tools_section(tools))
    if channels:
        rule = f"# Valid channels: {', '.join(channels)}. Channel must be included for every message."
        if has_functions:
            rule += "\nCalls to these tools must go to the commentary channel: 'functions'."
        sections.append(rule)
    return Message(role="system", content="\n\n".join(sections))


def developer_message(
    instructions: str | None = None,
    *,
    tools: Sequence[FunctionTool] = (),
    response_formats: Sequence[ResponseFormat] = (),
) -> Message:
    """Return the developer message: an API user's system prompt, all functions, and schemas of the answer."""
    sections = [] if instructions is None else ["# Instructions", instructions]
    if tools:
        sections.append(tools_section([ToolNamespace(name=FUNCTIONS, tools=tuple(tools))]))
    if response_formats:
        sections.append(response_formats_section(response_formats))
    return Message(role="developer", content="\n\n".join(sections))


def call_message(name: str, arguments: str, *, channel: str = "commentary") -> Message:
    """Return a past call of the function `name`, as the model wrote it; a name with a dot has its own namespace."""
    return Message(
        role="assistant",
        channel=channel,
        recipient=_qualified(name),
        content_type="<|constrain|>json",
        content=arguments,
    )


def result_message(name: str, output: str, *, channel: str = "commentary") -> Message:
    """Return the result of the function `name` as a message; a name with a dot has its own namespace."""
    return Message(role="tool", name=_qualified(name), recipient="assistant", channel=channel, content=output)


def stop_ids(codec: TextCodec) -> tuple[int, int]:
    """Return the ids that end the assistant's turn: <|return|> and <|call|>. After <|end|> the turn goes on."""
    return codec.special[RETURN], codec.special[CALL]


class MessageIds(NamedTuple):
    """Token ids of one message in three parts; the header ends in <|message|>."""

    header: list[int]
    content: list[int]
    end: int


def render_message(codec: TextCodec, message: Message) -> list[int]:
    """Return token ids of one message; <|call|> ends an assistant's message to a recipient, <|end|> any other.

    Raises InvalidRequest for a tool message without a name.
    """
    header, content, end = message_ids(codec, message)
    return [*header, *content, end]


def message_ids(codec: TextCodec, message: Message, *, recipient_last: bool = False) -> MessageIds:
    """Return what `render_message` does, in parts.

    `recipient_last` puts the recipient behind the channel, where gpt-oss writes it itself; openai-harmony renders it
    before, and parses both.
    """
    special = codec.special
    if message.role == "tool":
        if message.name is None:
            raise InvalidRequest("a tool message needs the name of its tool", param="messages")
        author = message.name
    else:
        author = message.role
    ids = [special[START], *codec.encode(author)]
    # Pieces are encoded one by one, as the reference does: joined they could merge into other tokens.
    if message.role != "tool" and message.name is not None:
        ids += codec.encode(f":{message.name}")
    to = [] if message.recipient in (None, "all") else codec.encode(f" to={message.recipient}")
    channel = [] if message.channel is None else [special[CHANNEL], *codec.encode(message.channel)]
    ids += channel + to if recipient_last else to + channel
    if message.content_type is not None:
        plain = message.content_type.removeprefix(CONSTRAIN)
        if plain != message.content_type:
            ids += [*codec.encode(" "), special[CONSTRAIN], *codec.encode(plain)]
        else:
            ids += codec.encode(f" {plain}")
    is_call = message.role == "assistant" and message.recipient is not None
    return MessageIds([*ids, special[MESSAGE]], codec.encode(message.content), special[CALL if is_call else END])


def opener_ids(codec: TextCodec) -> list[int]:
    """Return `<|start|>assistant`, the end of every prompt: the model goes on from there."""
    return [codec.special[START], *codec.encode("assistant")]


def render_conversation(
    codec: TextCodec,
    messages: Sequence[Message],
    *,
    purpose: Literal["completion", "training", "history"] = "completion",
    drop_analysis: bool = True,
) -> list[int]:
    """Return token ids of a conversation.

    "completion" ends with `<|start|>assistant`, after which the model goes on; "training" ends a last assistant
    message on the final channel with <|return|>, as the model should; "history" adds nothing.

    `drop_analysis` leaves out the analysis of finished turns: every message on the analysis channel before the last
    final message that is followed by another one, or by the prompt of "completion". Calls and results of built-in
    tools on that channel are left out too; function calls and results, on commentary, stay. Analysis between the tool
    calls of a turn without its final message stays, and so does that of the turn being trained on.

    openai-harmony's own `auto_drop_analysis` looks at the first final message only, and only if the assistant's last
    message is final: it keeps the analysis of later finished turns, and drops none while a tool is being called.
    """
    ids: list[int] = []
    for message in visible_messages(messages, prompted=purpose == "completion") if drop_analysis else messages:
        ids += render_message(codec, message)
    if purpose == "completion":
        ids += opener_ids(codec)
    elif purpose == "training" and messages and is_final(messages[-1]):
        ids[-1] = codec.special[RETURN]
    return ids


def visible_messages(messages: Sequence[Message], *, prompted: bool) -> list[Message]:
    """Return the messages without the analysis of finished turns; `prompted`: an answer follows the last of them."""
    start = _first_unfinished(messages, prompted=prompted)
    return [message for i, message in enumerate(messages) if i >= start or stays(message)]


def is_final(message: Message) -> bool:
    """Whether the message ends a turn of the assistant."""
    return message.role == "assistant" and message.channel == "final"


def stays(message: Message) -> bool:
    """Whether the message is rendered still when its turn is finished."""
    return message.channel != "analysis"


def _qualified(name: str) -> str:
    return name if "." in name else f"{FUNCTIONS}.{name}"


def _first_unfinished(messages: Sequence[Message], *, prompted: bool) -> int:
    """Return the index just after the last finished turn."""
    last = len(messages) if prompted else len(messages) - 1
    return max((i + 1 for i in range(last) if is_final(messages[i])), default=0)
