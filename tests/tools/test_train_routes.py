"""The classifier of routes: halves that share nothing, weights that training gives again, how many are right."""

from collections import Counter

import pytest

from eyas.router.routes.classifier import WEIGHTS, Classifier
from eyas.router.settings.schema import ROUTES
from train_routes import Settings, as_json, final_weights, halves, held_out, main, spelt_out, table, written


def folded(text):
    return " ".join(text.lower().split())


def test_there_are_fifty_different_prompts_for_each_route():
    prompts = written()
    assert Counter(prompt.route for prompt in prompts) == dict.fromkeys(ROUTES, 50)
    assert len({folded(prompt.text) for prompt in prompts}) == 300


def test_prompts_are_short_and_long_of_one_line_and_many_and_in_several_languages():
    texts = [prompt.text for prompt in written()]
    assert sum(len(text.split()) <= 3 for text in texts) >= 15
    assert sum(text.count("\n") >= 4 for text in texts) >= 10
    assert sum(len(text) > 200 for text in texts) >= 25
    assert sum(not text.isascii() for text in texts) >= 20


def test_halves_are_of_places_not_of_texts():
    own, others = halves(300)
    assert len(own) == len(others) == 150
    assert sorted(own + others) == list(range(300))
    assert halves(300) == (own, others)


def test_nothing_that_is_held_out_is_trained_on():
    prompts = written()
    own, _ = halves(300)
    sentences = spelt_out(Settings().sentences, {prompt.text for prompt in prompts})
    trained_on = {folded(text) for _, text in [*(prompts[at] for at in own), *sentences]}
    assert len(sentences) > 1500
    assert not trained_on & {folded(prompt.text) for prompt in held_out()}


def test_training_again_gives_the_weights_of_the_package(tmp_path, monkeypatch):
    assert as_json(final_weights(Settings())) == WEIGHTS.read_text(encoding="utf-8")
    monkeypatch.setattr("train_routes.WEIGHTS", tmp_path / "weights.json")
    main([])
    assert (tmp_path / "weights.json").read_bytes() == WEIGHTS.read_bytes()


def test_four_fifths_of_the_held_out_half_are_right(capsys):
    prompts, classifier = held_out(), Classifier.shipped()
    right = Counter(prompt.route for prompt in prompts if classifier.route(prompt.text) == prompt.route)
    assert right.total() >= 0.8 * len(prompts)
    assert min(right[route] for route in ROUTES) >= 15, "no route is sacrificed to the others"
    main(["--held-out"])
    assert f"{right.total()} of 150 right" in capsys.readouterr().out


def test_table_counts_each_prompt_once():
    lines = table(["MATH", "MATH", "RESEARCH"], ["MATH", "RESEARCH", "RESEARCH"]).splitlines()
    assert lines[2] == "| MATH | 1 | 0 | 0 | 0 | 1 | 0 | 50% |"
    assert lines[-1] == "2 of 3 right, 66.7%"


def test_unknown_flag_shows_how_it_is_used():
    with pytest.raises(SystemExit, match="--held-out"):
        main(["--held"])
