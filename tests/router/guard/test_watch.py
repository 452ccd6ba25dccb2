"""A watch over an answer: modes, what a request says about repetition, and what a loop counts as."""

import random

import pytest
from tests.base.support.benign_texts import BENIGN, WANTED
from tests.base.support.looping import chunks, looping_answers

from eyas.base.serving.repetition import Detector, Loop
from eyas.router.guard.watch import failure_of, watch_for


def watched(text, prompt="", max_tokens=None, mode="act"):
    """The loop that a watch finds in `text`, and how often it asked for the prompt."""
    asked = []
    watch = watch_for(mode, max_tokens=max_tokens, prompt=lambda: asked.append(1) or prompt)
    loops = [loop for chunk in chunks(text, random.Random(1), 8) if (loop := watch.add(chunk))]
    assert len(loops) <= 1
    return (loops or [None])[0], len(asked)


def test_modes():
    assert watch_for("off", max_tokens=None, prompt=str) is None
    assert not watch_for("observe", max_tokens=None, prompt=str).is_acting
    assert watch_for("act", max_tokens=None, prompt=str).is_acting
    assert watched("never " * 300, mode="observe") == watched("never " * 300, mode="act")


@pytest.mark.parametrize("name", BENIGN)
def test_good_answers_pass_and_seldom_need_their_prompt(name):
    answer = BENIGN[name]
    loop, num_asked = watched(answer.text, answer.prompt)
    assert loop is None and num_asked <= 1


@pytest.mark.parametrize("name", WANTED)
def test_what_a_prompt_asks_for_passes(name):
    answer = WANTED[name]
    assert watched(answer.text, answer.prompt)[0] is None
    assert Detector().feed(answer.text) is not None  # without its prompt it is a loop


@pytest.mark.parametrize("name", WANTED)
def test_without_end_it_is_a_loop_all_the_same(name):
    answer = WANTED[name]
    assert watched(answer.text[:400] * 1000, answer.prompt)[0] is not None


def test_a_short_answer_has_time_unless_it_is_one_symbol():
    assert watched("never " * 300)[0] is not None
    assert watched("never " * 300, max_tokens=257)[0] is not None
    assert watched("never " * 300, max_tokens=256) == (None, 0)
    assert watched("?" * 600, max_tokens=16)[0].is_symbol
    assert watched("!" * 100, max_tokens=16)[0].kind == "fault"


def test_loops_without_a_request_for_them():
    prompt = "Please explain how a tokenizer works, with an example."
    for looping in looping_answers(20, seed=11):
        assert watched(looping.text, prompt)[0] is not None


def test_failures():
    def of(kind):
        return failure_of(Loop(kind=kind, unit="a", span=1024, position=1024))

    assert of("fault") == of("symbol") == "one_symbol"
    assert of("line") == of("ruler") == of("grid") == "degenerate"
