"""The many fields of `/v1/chat/completions`, through the official SDK: what each does, and which are refused."""

import httpx
import openai
import pytest
from tests.gateway.support.gateway import CONTENT, REASONING, reply_ids
from tests.gateway.support.openai import added_up
from tests.gateway.support.responses import analysis, final, preamble

from eyas.base.errors import InvalidRequest
from eyas.base.types import SamplingParams
from eyas.gateway.openai.sampling import encode_bad_words

CALL = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def greeting(stage):
    return stage.say(analysis(REASONING), final(CONTENT))


def as_format(schema, **fields):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema} | fields}


def test_sampling_fields_reach_the_engine(stage):
    numbers = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "n": 2, "min_tokens": 2,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2, "ignore_eos": True,
    }  # fmt: skip
    lists = {"stop_token_ids": [5, 6], "allowed_token_ids": [1, 2, 3], "logit_bias": {"7": -2.5}}
    greeting(stage).chat(extra_body=numbers | lists | {"cache_salt": "pepper", "max_tokens": 9})
    params = stage.request.params
    assert {name: getattr(params, name) for name in numbers} == numbers
    assert (params.stop_token_ids, params.allowed_token_ids, params.logit_bias) == ((5, 6), (1, 2, 3), {7: -2.5})
    assert stage.request.cache_salt == "pepper" and params.max_tokens == 9


def test_what_is_not_given_is_the_default(stage):
    greeting(stage).chat()
    assert stage.request.params == SamplingParams()


def test_defaults_of_the_model_stand_behind_the_request(serve, codec):
    seen = []

    def reply(request, choice):
        seen.append(request.params)
        return codec.encode("x")

    server = serve(reply, gateway={"defaults": {"temperature": 0.6, "top_k": 40.0}})
    server.chat()
    server.chat(temperature=0)
    assert [(params.temperature, params.top_k) for params in seen] == [(0.6, 40), (0.0, 40)]


def test_bad_words_stand_with_and_without_a_space(stage, codec):
    greeting(stage).chat(extra_body={"bad_words": ["user", "xyz"]})
    words = {codec.decode(ids) for ids in stage.request.params.bad_words}
    assert words == {"user", " user", "xyz", " xyz"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"response_format": as_format(SCHEMA)}, '"required": ["n"]'),
        ({"response_format": {"type": "json_object"}}, '%json {"type": "object"'),
        ({"extra_body": {"structured_outputs": {"json": SCHEMA}}}, '"required": ["n"]'),
        ({"extra_body": {"structured_outputs": {"regex": "a+b"}}}, "/a+b/"),
        ({"extra_body": {"structured_outputs": {"choice": ["red", "blue"]}}}, '"red" | "blue"'),
        ({"extra_body": {"structured_outputs": {"grammar": 'start: "x"+'}}}, 'start: \\"x\\"+'),
        ({"extra_body": {"structured_outputs": {"json_object": True}}}, '%json {"type": "object"'),
    ],
)
def test_a_bound_answer_is_a_grammar(stage, fields, words):
    greeting(stage).chat(**fields)
    assert words in stage.request.params.grammar


def test_text_binds_nothing(stage):
    greeting(stage).chat(response_format={"type": "text"})
    assert stage.request.params.grammar is None


def test_the_model_is_told_of_the_schema(stage):
    greeting(stage).chat(response_format=as_format(SCHEMA, description="A number.", strict=True))
    assert "# Response Formats\n\n## answer\n\n// A number.\n" in stage.prompt()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": as_format({"type": "strin"})}, "response_format.json_schema.schema"),
        ({"response_format": as_format(SCHEMA) | {"json_schema": {"name": "a b", "schema": SCHEMA}}},
         "response_format.json_schema.name"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "start: nowhere"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx"),
        ({"response_format": {"type": "json_object"}, "min_tokens": 3}, "min_tokens"),
        ({"guided_json": SCHEMA}, "guided_json"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"store": True}, "store"),
        ({"echo": True}, "echo"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"service_tier": "turbo"}, "service_tier"),
        ({"prompt_cache_retention": "48h"}, "prompt_cache_retention"),
        ({"reasoning_effort": "xhigh"}, "reasoning_effort"),
        ({"verbosity": "low"}, "verbosity"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": ["x" * 1025]}, "bad_words"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 1001}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [CALL] * 129}]}, "messages[0].tool_calls"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"logit_bias": {"1000000": 1}}, "logit_bias"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "reasoning_effort"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs.enable_thinking"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(stage, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        stage.chat(extra_body=fields)
    assert caught.value.param == param


def test_too_many_bad_words_are_not_encoded(codec, monkeypatch):
    encoded = []
    monkeypatch.setattr(type(codec), "encode", lambda self, text: encoded.append(text) or [1])
    for words in (["x"] * 65, ["x", "y" * 1025]):
        with pytest.raises(InvalidRequest, match="at most 64 words of at most 1024 characters"):
            encode_bad_words(codec, words)
    assert not encoded and encode_bad_words(codec, ["x"] * 64) == ((1,),)


def test_labels_and_neutral_values_are_accepted(stage):
    labels = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}}
    neutral = {"store": False, "modalities": ["text"], "use_beam_search": False, "priority": 0, "verbosity": "medium"}
    assert greeting(stage).chat(extra_body=labels | neutral).choices[0].message.content == CONTENT
    prompt = stage.prompt()
    cached = [{"cache_prompt": value} for value in (True, False)]
    cached += [{"prompt_cache_retention": value} for value in ("in_memory", "in-memory", "24h")]
    tiers = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")
    for fields in [*cached, *({"service_tier": tier} for tier in tiers)]:
        stage.chat(extra_body=fields)
        assert stage.prompt() == prompt and stage.request.params == SamplingParams()


def test_another_model_is_404(stage):
    with pytest.raises(openai.NotFoundError, match="this server has 'stub'") as caught:
        stage.server.client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Hi"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_prompt_that_is_too_long_has_its_own_code(stage):
    with pytest.raises(openai.BadRequestError) as caught:
        stage.chat("x" * 1000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_effort_by_its_field_or_the_templates(stage):
    greeting(stage).chat(reasoning_effort="low")
    assert "Reasoning: low" in stage.prompt()
    stage.chat(extra_body={"chat_template_kwargs": {"reasoning_effort": "high"}})
    assert "Reasoning: high" in stage.prompt()


@pytest.mark.parametrize("effort", ["none", "minimal"])
def test_less_effort_than_the_model_has_is_low(stage, effort):
    greeting(stage).chat(reasoning_effort=effort)
    assert "Reasoning: low" in stage.prompt()
    stage.chat(extra_body={"chat_template_kwargs": {"reasoning_effort": effort}, "reasoning_effort": "low"})
    assert "Reasoning: low" in stage.prompt()


def test_a_refusal_in_the_history_is_what_the_assistant_said(stage):
    ask, again = {"role": "user", "content": "Hi"}, {"role": "user", "content": "Why?"}
    parts = [{"type": "text", "text": "I "}, {"type": "refusal", "refusal": "won't."}]
    for said in ({"content": None, "refusal": "I won't."}, {"content": parts}, {"content": "I ", "refusal": "won't."}):
        greeting(stage).talk([ask, {"role": "assistant"} | said, again])
        assert "<|start|>assistant<|channel|>final<|message|>I won't.<|end|>" in stage.prompt()
    for wrong, param in (({"refusal": "x"}, "refusal"), ({"content": parts}, "content[1].type")):
        with pytest.raises(openai.BadRequestError) as caught:
            stage.talk([ask | wrong])
        assert caught.value.param == f"messages[0].{param}"


def test_reasoning_can_be_left_out(stage):
    whole = greeting(stage).chat(extra_body={"include_reasoning": False})
    assert not hasattr(whole.choices[0].message, "reasoning") and whole.choices[0].message.content == CONTENT
    assert whole.usage.completion_tokens_details.reasoning_tokens > 0
    chunks = list(stage.chat(stream=True, extra_body={"include_reasoning": False}))
    assert added_up(chunks) == added_up(stage.chat(stream=True)) | {"reasoning": None, "reasoning_content": None}


def test_reasoning_goes_back_by_either_name(stage, codec):
    for name in ("reasoning", "reasoning_content"):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        said = {"role": "assistant", name: "Hm.", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c", "content": "1"}
        greeting(stage).talk([{"role": "user", "content": "Hi"}, said, result])
        assert "<|channel|>analysis<|message|>Hm.<|end|>" in stage.prompt()


def test_messages_of_one_kind_are_told_apart_by_a_line_break(stage):
    stage.say(analysis("a"), analysis("b"), preamble("c"), final("d"))
    message = stage.chat().choices[0].message
    assert (message.reasoning, message.content) == ("a\nb", "c\nd")
    streamed = added_up(stage.chat(stream=True))
    assert (streamed["reasoning"], streamed["content"]) == ("a\nb", "c\nd")


def test_token_ids(stage, codec):
    fields = {"extra_body": {"return_token_ids": True}}
    whole = greeting(stage).chat(**fields)
    ids = list(stage.reply(stage.request, 0))
    assert whole.prompt_token_ids == list(stage.request.prompt_ids) and whole.choices[0].token_ids == ids
    chunks = list(stage.chat(stream=True, **fields))
    assert [i for chunk in chunks for i in chunk.choices[0].token_ids] == ids
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids and not hasattr(chunks[1], "prompt_token_ids")


def test_tokens_as_token_ids(stage, codec):
    whole = greeting(stage).chat(logprobs=True, top_logprobs=1, extra_body={"return_tokens_as_token_ids": True})
    tokens = whole.choices[0].logprobs.content
    assert [token.token for token in tokens] == [f"token_id:{i}" for i in codec.encode(CONTENT)]
    assert tokens[0].top_logprobs[0].token == tokens[0].token


def test_prompt_logprobs(stage):
    whole = greeting(stage).chat(extra_body={"prompt_logprobs": 1})
    ids, logprobs = stage.request.prompt_ids, whole.prompt_logprobs
    assert logprobs[0] is None and len(logprobs) == len(ids)
    for token_id, entry in zip(ids[1:], logprobs[1:], strict=True):
        piece = stage.codec.token_bytes(token_id).decode(errors="replace")
        assert entry == {str(token_id): {"logprob": -0.25, "rank": 1, "decoded_token": piece}}


def test_speculation_is_told(serve, codec):
    answer = serve(drafts_per_round=4).chat()
    timings, speculation = answer.timings, answer.metrics["speculative_decoding"]
    assert speculation["num_draft_tokens"] == timings["draft_n"] > 0
    assert speculation["num_accepted_draft_tokens"] == timings["draft_n_accepted"]
    histogram = speculation["acceptance_histogram"]
    assert sum(histogram) == speculation["num_spec_steps"] and len(histogram) == speculation["num_spec_tokens"] + 1
    assert sum(j * count for j, count in enumerate(histogram)) == speculation["num_accepted_draft_tokens"]
    mean = 1 + speculation["num_accepted_draft_tokens"] / speculation["num_spec_steps"]
    assert speculation["mean_acceptance_length"] == pytest.approx(mean, abs=1e-4)


def test_usage_on_every_chunk(stage):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(greeting(stage).chat(stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == counts[-2] == len(stage.reply(stage.request, 0))


def test_stop_strings_may_be_shown(stage):
    fields = {"stop": ["there", "nest"], "extra_body": {"include_stop_str_in_output": True}}
    choice = greeting(stage).chat(**fields).choices[0]
    assert (choice.message.content, choice.finish_reason, choice.stop_reason) == ("Hello there", "stop", "there")
    chunks = list(stage.chat(stream=True, **fields))
    assert added_up(chunks)["content"] == "Hello there" and chunks[-1].choices[0].stop_reason == "there"


def test_a_stop_token_ends_and_is_named(stage, codec):
    (token_id,) = codec.encode("!")
    choice = greeting(stage).chat(extra_body={"stop_token_ids": [token_id]}).choices[0]
    assert (choice.message.content, choice.stop_reason) == ("Hello there", token_id)
    assert stage.chat().choices[0].stop_reason is None


def test_an_end_of_turn_has_no_stop_reason_even_if_asked_for(stage, codec):
    fields = {"stop_token_ids": [codec.special["<|return|>"]]}
    assert greeting(stage).chat(extra_body=fields).choices[0].stop_reason is None
    asked = stage.chat(extra_body=fields | {"ignore_eos": True}).choices[0]
    assert asked.stop_reason == codec.special["<|return|>"] and asked.message.content == CONTENT


def test_no_stop_string_spans_two_messages(stage):
    stage.say(preamble("o th"), final("ere, there"))
    assert stage.chat(stop="there").choices[0].message.content == "o th\nere, "
    assert added_up(stage.chat(stop="there", stream=True))["content"] == "o th\nere, "


def test_a_trailing_end_of_text_is_no_content(stage, codec):
    ids = reply_ids(codec)
    stage.say_ids([*ids[:-1], codec.special["<|endoftext|>"]])
    assert stage.chat(logprobs=True).choices[0].message.content == CONTENT


def test_errors_before_the_first_token_have_their_status(stage):
    answer = httpx.post(f"{stage.server.url}/v1/chat/completions", json={"messages": [], "stream": True})
    assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
