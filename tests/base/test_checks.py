"""What is refused from the model's size alone, and the budget of what is not."""

import pytest

from eyas.base.checks import check_queue, check_request
from eyas.base.errors import Busy, InvalidRequest
from eyas.base.types import Request, SamplingParams


def check(prompt, **params):
    request = Request(request_id="r", prompt_ids=prompt, params=SamplingParams(**params))
    return check_request(request, context=10, vocab_size=100)


@pytest.mark.parametrize(("length", "max_tokens", "budget"), [(1, None, 9), (9, None, 1), (4, 3, 3), (4, 50, 6)])
def test_the_budget_ends_with_the_context_or_max_tokens(length, max_tokens, budget):
    assert check((1,) * length, max_tokens=max_tokens) == budget


def test_a_prompt_that_is_too_long_names_both_numbers():
    with pytest.raises(InvalidRequest, match=r"12 tokens.* 10 ") as refused:
        check((1,) * 12)
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop_token_ids", (100,)),
        ("logit_bias", {-1: 1.0}),
        ("allowed_token_ids", (3, 100)),
        ("bad_words", ((1, 2), (3, -4))),
    ],
)
def test_ids_outside_the_vocabulary_are_named(name, value):
    with pytest.raises(InvalidRequest, match=r"0\.\.99") as refused:
        check((1,), **{name: value})
    assert refused.value.param == name


@pytest.mark.parametrize(("num_open", "n"), [(0, 5), (3, 2), (4, 1)])
def test_as_many_answers_fit_as_run_and_may_wait(num_open, n):
    check_queue(num_open, n, concurrency=3, max_queue=2)
    with pytest.raises(Busy, match="the queue is full"):
        check_queue(num_open + 1, n, concurrency=3, max_queue=2)


def test_a_request_that_would_not_fit_alone_is_not_told_to_come_back():
    with pytest.raises(InvalidRequest, match="n must be at most 5") as refused:
        check_queue(0, 6, concurrency=3, max_queue=2)
    assert refused.value.param == "n"


def test_no_more_allowed_ids_than_the_vocabulary_has():
    check((1,), allowed_token_ids=(7,) * 100)
    with pytest.raises(InvalidRequest, match="names 101 ids, the vocabulary has 100") as refused:
        check((1,), allowed_token_ids=(7,) * 101)
    assert refused.value.param == "allowed_token_ids"
