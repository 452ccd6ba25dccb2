"""What no request can ask for is refused where the request is made, and the error names the parameter."""

import dataclasses

import pytest

from eyas.base.errors import InvalidRequest
from eyas.base.types import (
    MAX_BAD_WORD_IDS,
    MAX_BAD_WORDS,
    MAX_CHOICES,
    MAX_COUNT,
    MAX_GRAMMAR_CHARS,
    MAX_LOGIT_BIAS,
    MAX_STOP_IDS,
    MAX_TOP_LOGPROBS,
    Request,
    SamplingParams,
)

NAN = float("nan")
OUT_OF_RANGE = {
    "temperature": (-0.1, 100.1, NAN),
    "top_p": (0.0, 1.1, NAN),
    "top_k": (-2, MAX_COUNT + 1),
    "min_p": (-0.1, 1.1, NAN),
    "seed": (-1, 2**63),
    "n": (0, MAX_CHOICES + 1),
    "stop_token_ids": ((1,) * (MAX_STOP_IDS + 1),),
    "min_tokens": (-1, MAX_COUNT + 1),
    "max_tokens": (0, MAX_COUNT + 1),
    "logprobs": (-1, MAX_TOP_LOGPROBS + 1),
    "presence_penalty": (-2.1, 2.1, NAN),
    "frequency_penalty": (-2.1, 2.1, NAN),
    "repetition_penalty": (0.0, 10.1, NAN),
    "logit_bias": ({1: -100.1}, {1: NAN}, dict.fromkeys(range(MAX_LOGIT_BIAS + 1), 0.0)),
    "prompt_logprobs": (-1, MAX_TOP_LOGPROBS + 1),
    "allowed_token_ids": ((),),
    "bad_words": (((),), ((1,) * (MAX_BAD_WORD_IDS + 1),), ((1,),) * (MAX_BAD_WORDS + 1)),
    "grammar": ("x" * (MAX_GRAMMAR_CHARS + 1),),
}
ANY_VALUE = {"ignore_eos"}


@pytest.mark.parametrize("field", dataclasses.fields(SamplingParams), ids=lambda field: field.name)
def test_values_out_of_range_are_refused_by_name(field):
    assert (field.name in OUT_OF_RANGE) != (field.name in ANY_VALUE), "give values that must be refused"
    for value in OUT_OF_RANGE.get(field.name, ()):
        with pytest.raises(InvalidRequest) as refused:
            SamplingParams(**{field.name: value})
        assert refused.value.param == field.name


@pytest.mark.parametrize(
    ("make", "param"),
    [
        (lambda text: Request(request_id="r", prompt_ids=(1,), cache_salt=text), "cache_salt"),
        (lambda text: SamplingParams(grammar=text), "grammar"),
    ],
    ids=["cache_salt", "grammar"],
)
def test_half_a_surrogate_pair_is_refused(make, param):
    make("start: \U0001f426")
    with pytest.raises(InvalidRequest, match=f"{param} has half a surrogate pair at position 2") as refused:
        make("a \ud800")
    assert refused.value.param == param
