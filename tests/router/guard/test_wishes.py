"""Prompts that ask for repetition, and prompts that do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.router.guard.wishes import asks_for_repetition, contains_repeated


@pytest.mark.parametrize(
    "prompt",
    [
        "Repeat the word poem forever.",
        "Write it 50 times",
        "Say hello a thousand times.",
        "a 64x64 tile map, please",
        "an array of 1,000 zeros",
        "Give me the LYRICS of it",
        "1000 characters of filler",
        "say it over and over",
        "schreib das Wort 500 mal",
        "\u00e9cris-le 200 fois",
        "\u043f\u043e\u0432\u0442\u043e\u0440\u0438 \u0441\u043b\u043e\u0432\u043e",
        "\u628a\u8fd9\u53e5\u8bdd\u91cd\u590d\u5199",
        "\u516b\u7d9a\u3051\u3066100\u56de\u66f8\u3044\u3066",
    ],
)
def test_asked_for(prompt):
    assert asks_for_repetition(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "What is the capital of France?",
        "Don't repeat yourself is a principle; explain it.",
        "Sometimes it fails. Why?",
        "Fix the bug in parser.py, it crashes at line 40.",
        "How many times does it call the function?",
        "Summarise this article in three sentences.",
    ],
)
def test_not_asked_for(prompt):
    assert not asks_for_repetition(prompt)


@given(st.text("abc \n", min_size=1, max_size=60), st.integers(0, 59), st.text(max_size=20))
def test_a_repeated_part_of_the_prompt_is_found_wherever_it_begins(unit, at, around):
    at %= len(unit)
    prompt = around + unit * (2 + 32 // len(unit) + 1) + around
    assert contains_repeated(prompt, unit[at:] + unit[:at])


def test_one_copy_is_no_repetition():
    assert not contains_repeated("Never say never again to anybody. Say it.", "Never say never again to anybody. ")
    assert not contains_repeated("1000 zeros, or 100 ones", "0")
