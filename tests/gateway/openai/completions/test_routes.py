"""`/v1/completions` as the official SDK and lm-eval see it: raw prompts, echo, legacy log-probabilities."""

import httpx
import openai
import pytest
from tests.gateway.support.gateway import eventually

from eyas.base.errors import Busy

PROMPT = "Hello there, Gr\u00fc\u00dfe \U0001f985"
TEXT = " the nest \U0001f985."


def test_text(stage, codec):
    answer = stage.say_text(TEXT).complete(PROMPT)
    (choice,) = answer.choices
    assert (answer.object, choice.text, choice.finish_reason) == ("text_completion", TEXT, "stop")
    assert stage.request.prompt_ids == tuple(codec.encode(PROMPT)) and stage.request.params.max_tokens == 16
    assert answer.usage.completion_tokens == len(codec.encode(TEXT)) + 1
    assert answer.metrics["speculative_decoding"]["num_spec_steps"] > 0


@pytest.mark.parametrize("echo", [False, True])
def test_streamed_equals_whole(stage, echo):
    stage.say_text(TEXT)
    whole = stage.complete(PROMPT, echo=echo, logprobs=2)
    chunks = list(stage.complete(PROMPT, echo=echo, logprobs=2, stream=True, stream_options={"include_usage": True}))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    assert "".join(choice.text for choice in choices) == whole.choices[0].text == (PROMPT if echo else "") + TEXT
    assert choices[-1].finish_reason == "stop" and chunks[-1].usage == whole.usage
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [item for choice in choices for item in getattr(choice.logprobs, name)]
        assert streamed == getattr(whole.choices[0].logprobs, name)


def test_prompts_of_all_forms(stage, codec):
    ids = codec.encode("one")
    for prompt, expected in [
        ("one", [ids]),
        (["one", "one two"], [ids, codec.encode("one two")]),
        (ids, [ids]),
        ([ids, [5, 6]], [ids, [5, 6]]),
        (["one", [5]], [ids, [5]]),
    ]:
        answer = stage.say_text(TEXT).complete(prompt, extra_body={"return_token_ids": True})
        assert [choice.prompt_token_ids for choice in answer.choices] == expected
        assert [choice.index for choice in answer.choices] == list(range(len(expected)))
        assert answer.usage.prompt_tokens == sum(map(len, expected))


def test_several_prompts_and_choices_keep_their_order(serve, codec):
    end = codec.special["<|return|>"]

    def reply(request, choice):
        return [*codec.encode(f"{codec.decode(request.prompt_ids)}{choice}"), end]

    server = serve(reply)
    fields = {"model": "stub", "prompt": ["a", "b"], "n": 2}
    answer = server.client.completions.create(**fields)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "a0"), (1, "a1"), (2, "b0"), (3, "b1")]
    texts = dict.fromkeys(range(4), "")
    for choice in (
        choice for chunk in server.client.completions.create(**fields, stream=True) for choice in chunk.choices
    ):
        texts[choice.index] += choice.text
    assert texts == {0: "a0", 1: "a1", 2: "b0", 3: "b1"}
    assert answer.usage.completion_tokens == sum(len(codec.encode(text)) + 1 for text in texts.values())


def test_special_tokens_of_a_prompt_are_special(stage, codec):
    stage.say_text(TEXT).complete("<|start|>user<|message|>Hi<|end|>")
    special = codec.special
    assert stage.request.prompt_ids == (
        *(special["<|start|>"], *codec.encode("user"), special["<|message|>"]),
        *(*codec.encode("Hi"), special["<|end|>"]),
    )


def test_special_tokens_of_an_answer_are_shown_on_request(stage, codec):
    ids = [codec.special["<|channel|>"], *codec.encode("final"), codec.special["<|message|>"], *codec.encode("Hi")]
    stage.say_ids([*ids, codec.special["<|return|>"]])
    assert stage.complete().choices[0].text == "finalHi"
    shown = stage.complete(extra_body={"skip_special_tokens": False}).choices[0].text
    assert shown == "<|channel|>final<|message|>Hi"


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_scoring_a_prompt_as_lm_eval_does(stage, codec, max_tokens):
    """One entry a token of the prompt, the first unknown, then those of what was generated."""
    answer = stage.say_text(TEXT).complete(codec.encode(PROMPT), echo=True, logprobs=1, max_tokens=max_tokens)
    logprobs, ids = answer.choices[0].logprobs, codec.encode(PROMPT) + codec.encode(TEXT)[:max_tokens]
    assert logprobs.token_logprobs == [None] + [-0.25] * (len(ids) - 1)
    assert logprobs.tokens == [codec.decode([i]) for i in ids]
    assert logprobs.top_logprobs == [None, *({codec.decode([i]): -0.25} for i in ids[1:])]
    assert stage.request.params.prompt_logprobs == 1
    assert answer.choices[0].finish_reason == "length" and answer.usage.completion_tokens == max_tokens
    if not max_tokens:
        assert answer.choices[0].text == PROMPT


def test_scoring_counts_the_generated_token_even_if_it_has_no_text(stage, codec):
    """lm-eval drops the last entry, whatever it is."""
    stage.say_ids([codec.special["<|return|>"]])
    answer = stage.complete(PROMPT, echo=True, logprobs=1, max_tokens=1)
    assert len(answer.choices[0].logprobs.token_logprobs) == len(codec.encode(PROMPT)) + 1
    assert answer.choices[0].text == PROMPT


def test_offsets_point_into_the_text(stage, codec):
    choice = stage.say_text(TEXT).complete(PROMPT, echo=True, logprobs=0).choices[0]
    offsets = choice.logprobs.text_offset
    assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] == len(choice.text)
    for offset, token in zip(offsets, choice.logprobs.tokens, strict=True):
        assert "\ufffd" in token or token == "<|return|>" or choice.text[offset:].startswith(token)


def test_hidden_tokens_take_no_room_in_the_text(stage, codec):
    (a,), (b,) = codec.encode("a"), codec.encode("b")
    stage.say_ids([a, codec.special["<|end|>"], b, codec.special["<|return|>"]])
    logprobs = stage.complete(logprobs=0).choices[0].logprobs
    assert (logprobs.tokens, logprobs.text_offset) == (["a", "<|end|>", "b", "<|return|>"], [0, 1, 1, 2])
    shown = stage.complete(logprobs=0, extra_body={"skip_special_tokens": False}).choices[0]
    assert (shown.text, shown.logprobs.text_offset) == ("a<|end|>b", [0, 1, 8, 9])


def test_more_prompt_logprobs_than_fit_a_memory_are_refused(stage):
    """Together: each prompt alone would do."""
    prompts = [[1] * 500] * 30
    stage.say_text(TEXT).complete(prompts, echo=True, logprobs=1, max_tokens=1)
    with pytest.raises(openai.BadRequestError, match="15000 prompt tokens with 20 alternatives") as caught:
        stage.complete(prompts, echo=True, logprobs=20, max_tokens=1)
    assert caught.value.param == "prompt_logprobs"


def test_prompt_logprobs_in_vllms_form(stage):
    choice = stage.say_text(TEXT).complete(PROMPT, extra_body={"prompt_logprobs": 0}).choices[0]
    assert choice.prompt_logprobs[0] is None and choice.logprobs is None
    assert len(choice.prompt_logprobs) == len(stage.request.prompt_ids)


def test_stop_strings(stage):
    choice = stage.say_text(TEXT).complete(stop="nest").choices[0]
    assert (choice.text, choice.finish_reason, choice.stop_reason) == (" the ", "stop", "nest")


def test_logprobs_stop_with_the_text(stage):
    stage.say_text("ab cd")
    for stream in (False, True):
        answer = stage.complete(stop=" c", logprobs=1, stream=stream)
        choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
        assert "".join(choice.text for choice in choices) == "ab"
        assert "".join(token for choice in choices for token in choice.logprobs.tokens).startswith("ab")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "length"),
        ({"prompt": ["a", ""]}, "prompt[1]", "empty"),
        ({"prompt": [1, "a"]}, "prompt", "list of token ids"),
        ({"prompt": [[1, 10**6]]}, "prompt[0]", "vocabulary"),
        ({"prompt": [-1]}, "prompt", "vocabulary"),
        ({"prompt": ["a"] * 257}, "prompt", "256"),
        ({"prompt": None}, "prompt", ""),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"best_of": 3}, "best_of", "equals n"),
        ({"logprobs": 21}, "logprobs", "between 0 and 20"),
        ({"max_tokens": 0}, "max_tokens", "echo=true"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "cannot be enforced"),
        ({"stream": True, "echo": True, "logprobs": 1, "n": 2}, "stream", "whole answers"),
        ({"messages": []}, "messages", "unknown field"),
    ],
)
def test_a_bad_field_is_named(stage, fields, param, words):
    answer = httpx.post(f"{stage.server.url}/v1/completions", json={"prompt": "x"} | fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and words in error["message"], error


def test_a_prompt_that_is_too_long(stage):
    with pytest.raises(openai.BadRequestError) as caught:
        stage.complete([5] * 600)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_best_of_may_equal_n(stage):
    assert len(stage.say_text("a", "b").complete(n=2, best_of=2).choices) == 2


def test_a_full_queue_gives_back_what_was_taken(serve, codec):
    server = serve(lambda request, choice: codec.encode("x" * 300), round_s=0.02)
    submit, taken = server.engine.submit, []

    def some(request, deliver):
        if len(taken) == 2:
            raise Busy("the queue is full; try again later")
        taken.append(request.request_id)
        submit(request, deliver)

    server.engine.submit = some
    with pytest.raises(openai.RateLimitError):
        server.client.completions.create(model="stub", prompt=["a", "b", "c"], max_tokens=200)
    assert eventually(lambda: server.engine.stats().num_running == 0, seconds=1.0)
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'status="429"' in metrics and 'status="499"' not in metrics  # nobody left
