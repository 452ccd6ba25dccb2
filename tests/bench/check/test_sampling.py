"""The rule by which equal answers are no chance: its bound of a token's probability, and how often it is wrong."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.check.support.stub import serving

from eyas.bench.check.discover import connect, discover
from eyas.bench.check.sampling import CHANCE, MAX_DRAWS, NUM_REPEATS, TOP, draws_needed, log_chance, sampling


def entries(distributions, chosen):
    """Entries of tokens as servers write them: the chosen one and the TOP most likely."""
    for probabilities, index in zip(distributions, chosen, strict=True):
        listed = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[:TOP]
        top = [{"token": str(i), "logprob": math.log(probabilities[i])} for i in listed]
        yield {"token": str(index), "logprob": math.log(probabilities[index]), "top_logprobs": top}


def filtered(probabilities, index, *, top_k, min_p):
    """The probability of a token after filters, as llama.cpp and vLLM define them; 0 if it is left out."""
    kept = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])[:top_k]
    kept = [i for i in kept if probabilities[i] >= min_p * max(probabilities)]
    return probabilities[index] / sum(probabilities[i] for i in kept) if index in kept else 0.0


@st.composite
def draws(draw):
    """Distributions over a dozen tokens, some of them sharp, and a token of each that can be drawn."""
    count = draw(st.integers(1, 6))
    found = []
    for _ in range(count):
        weights = [math.exp(draw(st.floats(-8, 8))) for _ in range(12)]
        total = sum(weights)
        found.append(([weight / total for weight in weights], draw(st.integers(0, 11))))
    return found


@given(draws(), st.sampled_from((8, 20, 40, 1000)), st.sampled_from((0.0, 0.05, 0.1)))
def test_the_bound_holds_under_usual_filters(drawn, top_k, min_p):
    truth = math.prod(filtered(p, index, top_k=top_k, min_p=min_p) for p, index in drawn)
    bound = math.exp(log_chance(entries(*zip(*drawn, strict=True))))
    assert truth <= bound * (1 + 1e-9)


@given(st.floats(-80, -1e-6))
def test_answers_that_are_all_the_same_are_no_chance(log_p):
    number = draws_needed(log_p)
    assert number is None or math.exp(number * log_p) <= CHANCE * (1 + 1e-9)
    assert number is not None or math.exp(MAX_DRAWS * log_p) > CHANCE


def test_a_certain_answer_proves_nothing():
    assert draws_needed(0.0) is None and draws_needed(-1e-9) is None
    assert draws_needed(None) == MAX_DRAWS and 0.5**MAX_DRAWS < CHANCE
    assert log_chance([{"token": "a", "logprob": 0.0, "top_logprobs": [{"token": "a", "logprob": 0.0}]}]) == 0


def test_a_sound_server_is_called_broken_in_fewer_than_one_of_a_thousand_runs():
    """Two comparisons, and four kinds of repeats of which at most one may be unchanged, at 1 changed answer in 10."""
    changed = (NUM_REPEATS - 1, NUM_REPEATS)
    repeats = sum(math.comb(NUM_REPEATS, k) * 0.1**k * 0.9 ** (NUM_REPEATS - k) for k in changed)
    assert 2 * CHANCE + 4 * repeats < 1e-3


@pytest.mark.parametrize("sure", [0.9999, 0.998, 0.97])
def test_a_model_that_is_sure_of_its_answers_is_never_called_broken(sure):
    """An answer has 48 words: the most likely one comes in 99, 91 and 23 of 100 draws."""

    async def verdicts():
        async with serving(sure=sure) as stub, connect(stub.url, None) as http:
            endpoint = await discover(http, stub.url, None)
            return [(await sampling(endpoint)).verdict for _ in range(4)]

    found = asyncio.run(verdicts())
    assert "broken" not in found
    assert sure > 0.98 or "ok" in found
