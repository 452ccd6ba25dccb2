"""The classifier: the same word for the same prompt, whatever the prompt is, in little time."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.router.routes.classifier import WEIGHTS, Classifier, Weights
from eyas.router.routes.features import MAX_READ, features
from eyas.router.settings.schema import ROUTES


def weights(**rows):
    return Weights(routes=ROUTES, bias=(0, 0, 0, 0, 0, 1), features={key: tuple(row) for key, row in rows.items()})


@given(st.text())
def test_every_prompt_gets_a_route(text):
    assert Classifier.shipped().route(text) in ROUTES


@given(st.text(), st.sets(st.sampled_from(ROUTES), min_size=1))
def test_it_is_the_best_of_those_that_there_are(text, among):
    classifier = Classifier.shipped()
    scores = classifier.scores(text)
    chosen = classifier.route(text, among)
    assert chosen in among
    assert all(scores[chosen] >= scores[other] for other in among)


@pytest.mark.parametrize(
    ("text", "route"),
    [
        ("12 * 37 = ?", "MATH"),
        ("hello!", "SELF_HANDLE"),
        ("write a python function that sorts a list", "SIMPLE_CODE"),
        ("Überblick über die Geschichte der Photographie mit Quellen", "RESEARCH"),
    ],
)
def test_plain_cases(text, route):
    assert Classifier.shipped().route(text) == route


def test_scores_are_sums_of_the_rows_of_what_is_there():
    classifier = Classifier(weights(prove=[5, 0, 0, 0, 0, 0], never=[0, 9, 0, 0, 0, 0]))
    assert classifier.scores("Prove it") == dict(zip(ROUTES, (5, 0, 0, 0, 0, 1), strict=True))
    assert classifier.route("Prove it") == "MATH"
    assert classifier.route("") == "SELF_HANDLE"
    assert classifier.route("", ["RESEARCH", "REASONING"]) == "REASONING", "of equal ones the first"


def test_weights_of_other_routes_are_refused():
    with pytest.raises(ValueError, match="weights of other routes: MATH"):
        Classifier(Weights(routes=("MATH",), bias=(0,), features={}))
    with pytest.raises(ValueError, match="weights of other routes"):
        Classifier(weights(short=[1, 2]))


def test_the_file_is_json_of_whole_numbers():
    data = json.loads(WEIGHTS.read_text(encoding="utf-8"))
    assert {type(number) for row in data["features"].values() for number in row} == {int}
    assert data["routes"] == list(ROUTES)


def test_features_are_words_pairs_beginnings_and_how_long_it_is():
    found = features("Sort my_list\nby 17 and 230")
    assert {"sort", "my_list", "0", "< sort", "by 0", "0 >", "my_l*", "#underscore", "#numbers 2"} <= found
    assert not found & {"17", "230", "sort*", "#code"}
    assert "#code" in features("```\nx\n```")
    assert {"利弊", "请分"} <= features("请分析利弊")


@given(st.text(max_size=200), st.integers(0, 5))
def test_of_a_long_prompt_the_beginning_and_the_end_are_read(text, more):
    head, tail = "alpha " * MAX_READ, " omega" * MAX_READ
    assert features(head + text * more + tail) == features(head + tail)


@pytest.mark.parametrize("text", ["word " * 100_000, "1+(x)=" * 100_000, "设计" * 100_000, "\n" * 500_000])
def test_a_long_prompt_costs_little(text):
    """About 0.2 ms on two busy cores; the limit is far off."""
    classifier = Classifier.shipped()
    began = time.process_time()
    for _ in range(20):
        classifier.route(text)
    assert time.process_time() - began < 0.2
