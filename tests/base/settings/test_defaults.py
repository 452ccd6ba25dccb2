"""Sampling defaults of a checkpoint: only what a sampling checkpoint says, and nothing that no request could have."""

import json

import pytest

from eyas.base.bundled import DEMO
from eyas.base.errors import UserError
from eyas.base.settings.defaults import sampling_defaults


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"do_sample": True, "eos_token_id": [200002, 199999, 200012], "bos_token_id": 199998}, {}),  # gpt-oss
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        ),
        (
            {"do_sample": True, "min_p": 0, "repetition_penalty": 1.1, "top_p": None},
            {"min_p": 0, "repetition_penalty": 1.1},
        ),
        ({"do_sample": False, "temperature": 0.6}, {}),
        ({"temperature": 0.6}, {}),
        ([], {}),
    ],
)
def test_what_the_file_says(tmp_path, content, expected):
    (tmp_path / "generation_config.json").write_text(json.dumps(content))
    assert sampling_defaults(tmp_path) == expected


def test_no_file_and_the_bundled_one_say_nothing(tmp_path):
    assert sampling_defaults(tmp_path) == sampling_defaults(DEMO) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ('{"do_sample": true, "temperature": "warm"}', "temperature must be a number, got 'warm'"),
        ('{"do_sample": true, "top_k": 1.5}', "top_k must be a number, got 1.5"),
        ('{"do_sample": true, "top_p": 7}', "top_p must be above 0 and at most 1, got 7"),
    ],
)
def test_a_file_that_makes_no_sense(tmp_path, text, words):
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(UserError, match=words):
        sampling_defaults(tmp_path)
