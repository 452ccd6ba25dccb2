"""Refusals of prompts that are too long, in the words of the engines."""

import pytest

from eyas.client.errors import Refused
from eyas.discord.context import TooLong, too_long

SAID = [
    (
        "This model's maximum context length is 8192 tokens, and the request has 9000 tokens in its messages.",
        8192,
        9000,
    ),
    (
        "This model's maximum context length is 8192 tokens. However, you requested 9048 tokens (7000 in the messages, "
        "2048 in the completion).",
        8192,
        9048,
    ),
    ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", 8192, 9000),
    ("request (5,000 tokens) exceeds the available context size (4,096 tokens), try increasing it", 4096, 5000),
    ("the request exceeds the available context size", None, None),
    (
        "'max_tokens' is too large: 2048. This model's maximum context length is 4096 tokens and your request has 3000 "
        "input tokens",
        4096,
        3000,
    ),
]


@pytest.mark.parametrize(("message", "context", "asked"), SAID)
def test_both_numbers_are_found(message, context, asked):
    assert too_long(Refused(400, message)) == TooLong(context=context, asked=asked)


@pytest.mark.parametrize(
    ("status", "message"), [(400, "no such model 'x'"), (500, SAID[0][0]), (400, "temperature must be at most 2")]
)
def test_other_refusals_are_others(status, message):
    assert too_long(Refused(status, message)) is None


def test_it_is_said_with_what_is_known():
    assert str(TooLong(context=8192, asked=9000)) == (
        "This question is too long for the model's context of 8,192 tokens: it has 9,000. Shorten it, or attach less."
    )
    assert str(TooLong(context=None, asked=None)).startswith(
        "This question is too long for the model's context. Shorten"
    )
