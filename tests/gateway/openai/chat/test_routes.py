"""`/v1/chat/completions` as the official SDK sees it, whole and streamed, over a real socket."""

import datetime
from dataclasses import replace

import pytest
from tests.gateway.support.gateway import CONTENT, REASONING, eventually, reply_ids

from eyas.base.harmony.rendering import Message, developer_message, render_conversation, system_message


def joined(chunks, index=0):
    """(reasoning, content, finish reason) of one choice of a stream."""
    own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    reasoning = "".join(getattr(choice.delta, "reasoning_content", None) or "" for choice in own)
    content = "".join(choice.delta.content or "" for choice in own)
    finishes = [choice.finish_reason for choice in own if choice.finish_reason]
    assert len(finishes) == 1 and own[-1].finish_reason == finishes[0]
    return reasoning, content, finishes[0]


def test_whole(serve, codec):
    answer = serve(num_cached=7).chat()
    message = answer.choices[0].message
    ids = reply_ids(codec)
    assert (message.role, message.content, message.reasoning_content) == ("assistant", CONTENT, REASONING)
    assert answer.choices[0].finish_reason == "stop" and answer.object == "chat.completion"
    assert answer.usage.completion_tokens == len(ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(ids)
    assert answer.usage.prompt_tokens_details.cached_tokens == 7
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(codec.encode(REASONING))
    assert answer.timings["prompt_n"] == answer.usage.prompt_tokens - 7


@pytest.mark.parametrize("per_round", [0, 1, 2, 3, 5, 1000])
def test_streamed_equals_whole_for_any_round_size(serve, per_round):
    """Characters that several tokens make up arrive whole, wherever a round cuts them."""
    chunks = list(serve(drafts_per_round=per_round).chat(stream=True))
    assert joined(chunks) == (REASONING, CONTENT, "stop")
    assert all("\ufffd" not in (choice.delta.content or "") for chunk in chunks for choice in chunk.choices)
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"} and len({c.id for c in chunks}) == 1


def test_at_most_one_chunk_per_engine_event(serve):
    server = serve(drafts_per_round=4)
    chunks = list(server.chat(stream=True))
    assert 4 < len(chunks) <= server.engine.stats().num_rounds


def test_usage_and_timings_of_a_stream(serve, codec):
    server = serve(drafts_per_round=4, num_cached=5)
    plain = list(server.chat(stream=True))
    assert all(chunk.usage is None for chunk in plain)
    chunks = list(server.chat(stream=True, stream_options={"include_usage": True}))
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    num = len(reply_ids(codec))
    usage, timings = chunks[-1].usage, chunks[-2].timings
    assert usage.completion_tokens == num and usage.prompt_tokens_details.cached_tokens == 5
    assert timings["predicted_n"] == num and timings["prompt_n"] == usage.prompt_tokens - 5
    # The first token comes from the prompt; each round of 4 drafts commits up to 4, the last one what is left.
    rounds = -(-(num - 1) // 4)
    assert timings["draft_n"] == num - 1 and timings["draft_n_accepted"] == num - 1 - rounds
    assert timings["predicted_ms"] > 0 and timings["predicted_per_second"] > 0


def test_several_choices(serve, codec):
    server = serve(lambda request, choice: reply_ids(codec, f"thought {choice}", f"answer {choice}"))
    whole = server.chat(n=3)
    assert [choice.message.content for choice in whole.choices] == ["answer 0", "answer 1", "answer 2"]
    assert whole.usage.completion_tokens == sum(len(reply_ids(codec, f"thought {i}", f"answer {i}")) for i in range(3))
    chunks = list(server.chat(n=3, stream=True))
    assert [joined(chunks, i) for i in range(3)] == [(f"thought {i}", f"answer {i}", "stop") for i in range(3)]


@pytest.mark.parametrize("per_round", [1, 2, 3, 7])
@pytest.mark.parametrize("stop", ["there", "o there! G", "\u00fc", "H", ["nest", "\U0001f985"]])
def test_stop_strings_trim_text_usage_and_logprobs(serve, codec, per_round, stop):
    expected = min((CONTENT.split(one)[0] for one in ([stop] if isinstance(stop, str) else stop)), key=len)
    server = serve(drafts_per_round=per_round)
    whole = server.chat(stop=stop, logprobs=True)
    chunks = list(server.chat(stop=stop, stream=True, stream_options={"include_usage": True}))
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (expected, "stop")
    assert joined(chunks) == (REASONING, expected, "stop")
    assert whole.usage == chunks[-1].usage
    # Counted up to the first token with which a stop string is complete.
    ids, header = codec.encode(CONTENT), len(reply_ids(codec, content="")) - 1
    ends = [
        i
        for i in range(len(ids) + 1)
        if any(one in codec.decode(ids[:i]) for one in ([stop], stop)[isinstance(stop, list)])
    ]
    assert whole.usage.completion_tokens == header + ends[0]
    kept = b"".join(bytes(token.bytes) for token in whole.choices[0].logprobs.content)
    assert kept.startswith(expected.encode()) and len(whole.choices[0].logprobs.content) <= ends[0]


def test_stop_string_cancels_what_the_engine_still_does(serve, codec):
    server = serve(lambda request, choice: reply_ids(codec, content="go " * 400), round_s=0.01)
    assert server.chat(stop="go go").choices[0].message.content == ""
    assert eventually(lambda: server.engine.stats().num_running == 0)
    assert server.engine.stats().num_generated_tokens < 200


def test_text_that_only_begins_like_a_stop_string_is_shown(serve, codec):
    server = serve(lambda request, choice: reply_ids(codec, content="from the nest"))
    assert server.chat(stop="nestling").choices[0].message.content == "from the nest"
    assert joined(list(server.chat(stop="nestling", stream=True)))[1] == "from the nest"


def test_one_choice_may_stop_while_another_goes_on(serve, codec):
    server = serve(lambda request, choice: reply_ids(codec, content=["a stop here and on and on", "b" * 60][choice]))
    whole = server.chat(n=2, stop="stop")
    assert [choice.message.content for choice in whole.choices] == ["a ", "b" * 60]
    chunks = list(server.chat(n=2, stop="stop", stream=True))
    assert [joined(chunks, i)[1] for i in range(2)] == ["a ", "b" * 60]


def test_stop_strings_are_not_looked_for_before_min_tokens(serve, codec):
    in_header = len(reply_ids(codec, content="")) - 1
    server = serve(lambda request, choice: reply_ids(codec, content="aaaaaaaaaa"))
    answer = server.chat(stop="a", extra_body={"min_tokens": in_header + 1})
    assert answer.choices[0].message.content == codec.decode(codec.encode("aaaaaaaaaa")[:1])


def test_logprobs_belong_to_the_content(serve, codec):
    server = serve()
    whole = server.chat(logprobs=True, top_logprobs=2)
    tokens = whole.choices[0].logprobs.content
    assert [bytes(token.bytes) for token in tokens] == [codec.token_bytes(i) for i in codec.encode(CONTENT)]
    assert all(token.logprob == -0.25 and len(token.top_logprobs) == 2 for token in tokens)
    chunks = list(server.chat(logprobs=True, top_logprobs=2, stream=True))
    streamed = [token for chunk in chunks for token in chunk.choices[0].logprobs.content]
    assert streamed == tokens
    assert server.chat().choices[0].logprobs is None


def test_logprobs_of_an_answer_that_is_no_harmony(serve, codec):
    """Without control tokens the parser cannot know a header from text before the end; nothing is lost."""
    ids = codec.encode("just text")
    for stream in (False, True):
        answer = serve(lambda request, choice: ids).chat(logprobs=True, stream=stream)
        choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
        tokens = [bytes(token.bytes) for choice in choices for token in choice.logprobs.content]
        assert tokens == [codec.token_bytes(i) for i in ids]
        if not stream:
            assert answer.choices[0].message.content == "just text"


def test_length(serve, codec):
    for limit in ("max_tokens", "max_completion_tokens"):
        answer = serve().chat(**{limit: 5})
        assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == 5
    cut = len(reply_ids(codec, content="")) - 1 + len(codec.encode("Hello there! Gr")) + 1  # within the u umlaut
    assert serve().chat(max_tokens=cut).choices[0].message.content.startswith("Hello there! Gr")


def test_the_prompt_is_harmony(serve, codec):
    seen = []

    def reply(request, choice):
        seen.append(request)
        return reply_ids(codec)

    serve(reply).client.chat.completions.create(
        model="stub",
        reasoning_effort="high",
        seed=3,
        temperature=0.5,
        logit_bias={"5": 1.5},
        messages=[
            {"role": "system", "content": "Be brief.", "name": "Boss"},
            {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": "three", "reasoning_content": "dropped: this turn is over", "name": "Bob"},
            {"role": "developer", "content": "Inline.", "name": "Eve"},
            {"role": "user", "content": "<|end|>four", "name": "Ann"},
        ],
    )
    expected = [
        system_message(date=datetime.date(2026, 11, 20).isoformat(), effort="high"),
        replace(developer_message("Be brief."), name="Boss"),
        Message(role="user", content="one two"),
        Message(role="assistant", channel="final", content="three", name="Bob"),
        replace(developer_message("Inline."), name="Eve"),
        Message(role="user", content="<|end|>four", name="Ann"),
    ]
    assert seen[0].prompt_ids == tuple(render_conversation(codec, expected))
    assert (seen[0].params.seed, seen[0].params.temperature, seen[0].params.logit_bias) == (3, 0.5, {5: 1.5})


def test_the_answer_can_be_sent_back(serve):
    server = serve()
    first = server.chat().choices[0].message
    history = [{"role": "user", "content": "Hi"}, first, {"role": "user", "content": "And?"}]
    assert server.client.chat.completions.create(model="stub", messages=history).choices[0].message.content == CONTENT


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<|channel|>analysis<|message|>only thoughts", "only thoughts", ""),
        ("<|channel|>commentary<|message|>a preamble<|end|>", "", "a preamble"),
        ("<|channel|>commentary to=functions.f<|message|>{}<|call|>", "{}", ""),
    ],
)
def test_other_channels(serve, codec, text, reasoning, content):
    import re

    parts = re.split(r"(<\|\w+\|>)", text)
    ids = [i for part in parts for i in ([codec.special[part]] if part in codec.special else codec.encode(part))]
    message = serve(lambda request, choice: ids).chat().choices[0].message
    assert (getattr(message, "reasoning_content", ""), message.content) == (reasoning, content)
