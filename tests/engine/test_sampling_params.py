"""Each sampling parameter does something: one that is named in the request and forgotten further down fails here."""

import dataclasses
import json

import pytest
import torch
from tests.engine.support.exactness import build, random_prompts

from eyas.base.types import FILTERS, Request, SamplingParams
from eyas.engine.round.state import DeviceState
from eyas.gateway.openai.sampling import SamplingFields
from eyas.gateway.question.sampling import CONVERTED, PLAIN
from eyas.kernels.reference.rounds.sample import SamplingRows

NAMES = [item.name for item in dataclasses.fields(SamplingParams)]
# By name: a value that must change the answer, and other parameters of both requests.
EFFECTS = {
    "temperature": (0.2, {}),
    "top_p": (0.05, {}),
    "top_k": (1, {}),
    "min_p": (0.9, {}),
    "seed": (7, {}),
    "n": (2, {}),
    "stop_token_ids": (tuple(range(0, 512, 4))[:16], {"max_tokens": 90}),
    "min_tokens": (9, {"stop_token_ids": (5,), "logit_bias": {5: 100.0}}),
    "max_tokens": (5, {}),
    "ignore_eos": (True, {}),
    "logprobs": (2, {}),
    "presence_penalty": (2.0, {}),
    "frequency_penalty": (2.0, {}),
    "repetition_penalty": (5.0, {}),
    "logit_bias": ({3: 100.0}, {}),
    "prompt_logprobs": (2, {}),
    "allowed_token_ids": ((3, 4, 5), {}),
    "bad_words": (tuple((token,) for token in range(64)), {}),
    "grammar": ("start: /[ab]{20}/", {}),
}


def answer(model, params: SamplingParams) -> list:
    """All that the events of one request say; the context ends an answer that nothing else ends."""
    core, said = build(model, concurrency=2, context=128), []
    prompt = random_prompts(1, model.config.vocab_size)[0][:30]

    def take(event):
        fields = dataclasses.asdict(event)
        said.append({name: value for name, value in fields.items() if name not in ("began", "round")})

    core.add(Request(request_id="r", prompt_ids=prompt, params=params), take)
    while not core.is_idle:
        core.step()
    return said


@pytest.fixture(scope="module")
def plain_answers():
    """Answers without the parameter that is tried; most ask for the same."""
    return {}


def test_each_parameter_is_tried():
    assert set(EFFECTS) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_changes_the_answer(name, request, plain_answers):
    model = request.getfixturevalue("random_speaker" if name == "grammar" else "random_model")
    value, others = EFFECTS[name]
    if name == "ignore_eos":
        others = {"logit_bias": {model.config.eos_ids[0]: 100.0}}
    common = {"seed": 3, "max_tokens": 24, "ignore_eos": name not in ("ignore_eos", "grammar")} | others
    plain = SamplingParams(**{key: common[key] for key in common if key != name})
    if (key := (id(model), repr(plain))) not in plain_answers:
        plain_answers[key] = answer(model, plain)
    assert answer(model, dataclasses.replace(plain, **{name: value})) != plain_answers[key]


def test_every_filter_has_a_tensor_and_turns_filtering_on():
    """`any_filter` decides whether filters run at all."""
    assert set(FILTERS) < set(SamplingRows._fields)
    for name in FILTERS:
        params = SamplingParams(**{name: EFFECTS[name][0]})
        sequence = type("Sequence", (), {"request": Request(request_id="r", prompt_ids=(1,), params=params)})
        assert DeviceState.flags_of([sequence]).any_filter
    off = SamplingParams(top_k=-1)
    assert off.filters() == FILTERS == SamplingParams().filters()


def test_every_parameter_can_be_asked_over_http():
    assert set(PLAIN) | CONVERTED == set(NAMES) and set(PLAIN) <= set(SamplingFields.__struct_fields__)
    asked = {"max_tokens", "logprobs", "grammar"}  # named differently by each API
    assert CONVERTED - asked <= set(SamplingFields.__struct_fields__)


def test_settings_of_rows_are_taken_by_name():
    rows = SamplingRows(*(torch.arange(4.0) + i for i in range(6)), any_random=True, any_filter=False)
    taken = rows.take(torch.tensor([2]))
    assert json.dumps([float(value) for value in taken]) == "[2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1.0, 0.0]"
