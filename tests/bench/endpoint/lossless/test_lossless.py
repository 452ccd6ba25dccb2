"""Whole comparisons: a stub that changes a token now and then is found, near ties are none, and our own server."""

import asyncio
import json
import random

import httpx
import msgspec
import pytest
from tests.support.serving import served

from eyas.base.errors import UserError
from eyas.bench.endpoint.lossless.run import NEAR_TIE, TOKENS, compare
from eyas.bench.endpoint.lossless.summary import Comparison, Losslessness
from eyas.bench.endpoint.prompts.builtin import builtin
from eyas.bench.endpoint.prompts.prompt import Prompt
from eyas.bench.endpoint.target import Arm, Endpoint, identify

LENGTH = 100  # tokens of an answer
NAMES = [f"w{i}" for i in range(1000)]
PROMPTS = [
    Prompt(id=f"made/{i}", category="made", messages=({"role": "user", "content": f"Question {i}"},)) for i in range(40)
]


class Engine:
    """An engine whose every token follows from the question, the seed and its place; `faults` changes some.

    Answers are made as one would: after a changed token all that follow are others.
    """

    def __init__(self, faults=lambda number, gap: False, *, draws_anew=False, fails_after=None, takes_logprobs=True):
        self.faults, self.draws_anew, self.fails_after = faults, draws_anew, fails_after
        self.takes_logprobs = takes_logprobs
        self.num_tokens = self.num_answers = self.num_changed = 0
        self.bodies = []

    def __call__(self, request):
        body = json.loads(request.content)
        self.bodies.append(body)
        self.num_answers += 1
        if self.fails_after is not None and self.num_answers > self.fails_after:
            raise httpx.ConnectError("connection refused")
        if "logprobs" in body and not self.takes_logprobs:
            return httpx.Response(400, json={"error": {"message": "logprobs are not supported with speculation"}})
        said, entries = [], []
        is_anew = self.draws_anew and "seed" in body
        rng = random.Random(f"{body['messages']}{body.get('seed')}{self.num_answers if is_anew else ''}")
        for _ in range(min(LENGTH, body["max_tokens"])):
            best, second = rng.sample(NAMES, 2)
            gap = rng.expovariate(0.3)  # a quarter of them within 1, as in text
            chosen = best
            if body["max_tokens"] >= LENGTH:  # not that of the trial
                if self.faults(self.num_tokens, gap):
                    self.num_changed += 1
                    chosen = second
                    rng.seed(f"{rng.random()}")  # all that follows is another text
                self.num_tokens += 1
            top = [{"token": best, "logprob": -0.2}, {"token": second, "logprob": -0.2 - gap}]
            said.append(chosen)
            logprob = next(one["logprob"] for one in top if one["token"] == chosen)
            entries.append({"token": chosen, "logprob": logprob, "top_logprobs": top})
        choice = {"message": {"role": "assistant", "content": " ".join(said)}, "finish_reason": "length"}
        if "logprobs" in body:
            choice["logprobs"] = {"content": entries}
        return httpx.Response(200, json={"choices": [choice], "usage": {"completion_tokens": len(entries)}})


def compared(base, other, *, engine="eyas", prompts=PROMPTS, **more):
    pairs = [
        (Arm(name=name, url=f"http://{name}:1"), Endpoint(root=f"http://{name}:1", model="m", engine=engine))
        for name in ("off", "on")
    ]
    transports = tuple(httpx.MockTransport(one) for one in (base, other))
    return asyncio.run(compare(*pairs, prompts, transports=transports, **more))


def test_one_changed_token_in_5000_is_found_at_20_000_tokens():
    changing = Engine(lambda number, gap: number % 5000 == 2500)
    found = compared(Engine(), changing)
    num_tokens = found.greedy.num_tokens + found.seeded.num_tokens
    assert num_tokens >= TOKENS == 20_000
    defects = found.greedy.count("defect") + found.seeded.count("defect")
    ties = found.greedy.count("near tie")
    assert defects >= 3 and defects + ties == changing.num_changed
    rates = [one.defects for one in (found.greedy, found.seeded)]
    assert any(rate.low > 0 for rate in rates) and all(rate.low <= 2.0 <= rate.high for rate in rates)
    assert f"on against off: {defects} defects in {num_tokens:,} tokens: not lossless" == found.sentence
    assert any("first defect: made/" in line for line in found.lines())


def test_an_engine_without_a_fault_has_none():
    found = compared(Engine(), Engine())
    assert (found.greedy.num_identical, found.greedy.divergences) == (found.greedy.num_answers, ())
    num_tokens = found.greedy.num_tokens + found.seeded.num_tokens
    most = 10_000 * 3.6889 / num_tokens  # -log(0.025), Garwood's upper limit for none
    assert found.sentence == f"on against off: no defect in {num_tokens:,} tokens: at most {most:.2f} per 10,000 (95 %)"
    number = found.greedy.num_answers
    assert f"{number} of {number} answers identical (100.0%), {number * LENGTH:,} tokens" in found.greedy.lines()[0]


def test_near_ties_are_no_defects():
    """An engine whose roundings differ flips the two best tokens where they are close, and only there."""
    flipping = Engine(lambda number, gap: gap < 0.1)
    found = compared(Engine(), flipping, engine="vllm", tokens=3000)
    assert found.greedy.count("near tie") > 10 and found.greedy.count("defect") == 0
    assert all(one.gap < 0.1 for one in found.greedy.divergences)
    assert found.near_tie == NEAR_TIE
    strict = compared(Engine(), Engine(lambda number, gap: gap < 0.1), engine="vllm", tokens=3000, near_tie=0.01)
    assert strict.greedy.count("defect") > strict.greedy.count("near tie") > 0


def test_what_comes_after_a_difference_does_not_count():
    found = compared(Engine(), Engine(lambda number, gap: number % LENGTH == 9), engine="vllm", tokens=500)
    assert found.greedy.num_identical == 0
    assert found.greedy.num_tokens == 10 * found.greedy.num_answers


def test_seeded_answers_of_other_engines_say_nothing_of_losslessness():
    found = compared(Engine(), Engine(draws_anew=True), engine="vllm", tokens=100)
    assert found.seeded.count("drawn") == found.seeded.num_answers > 0
    assert found.seeded.defects is None
    assert found.sentence == f"on against off: no defect in {found.greedy.num_tokens} tokens: at most " + (
        f"{10_000 * 3.6889 / found.greedy.num_tokens:.2f} per 10,000 (95 %)"
    )
    assert found.seeded.lines() == [
        f"seeded: 0 of {found.seeded.num_answers} answers identical (0.0%), "
        "not judged: the engine promises no tokens for a seed"
    ]
    ours = compared(Engine(), Engine(draws_anew=True), engine="eyas", tokens=100)
    assert ours.seeded.count("defect") == ours.seeded.num_answers


def test_an_endpoint_that_takes_no_log_probabilities_is_compared_by_text():
    plain = Engine(takes_logprobs=False)
    found = compared(plain, Engine(lambda number, gap: number == 1050), engine="tensorrt-llm", tokens=3000)
    assert [one.unit for one in found.greedy.divergences + found.seeded.divergences] == ["character"]
    assert "logprobs" not in plain.bodies[-1] and "return_token_ids" not in plain.bodies[0]
    whole = found.greedy.num_tokens + found.seeded.num_tokens
    missing = LENGTH * (found.greedy.num_answers + found.seeded.num_answers) - whole
    assert 40 < missing < 60  # one of them counts by half of its characters


def test_both_arms_are_asked_the_same():
    base, other = Engine(), Engine()
    compared(base, other, tokens=9000, concurrency=1)
    asked = [[(str(b["messages"]), b.get("seed"), b["temperature"]) for b in one.bodies[1:]] for one in (base, other)]
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == len(asked[0])  # no question twice
    assert {temperature for _, seed, temperature in asked[0] if seed is None} == {0}


def test_a_server_that_dies_keeps_what_was_compared():
    found = compared(Engine(), Engine(fails_after=21), tokens=20_000)
    assert found.greedy.num_answers + found.seeded.num_answers == 20
    assert found.ended == "on: no answer from http://on:1 (connection refused)"
    assert found.greedy.num_failed + found.seeded.num_failed >= 10


def test_a_server_that_is_not_there_is_one_line():
    with pytest.raises(UserError, match=r"on: no answer from http://on:1 \(connection refused\)"):
        compared(Engine(), Engine(fails_after=0))


def test_prompts_of_token_ids_are_refused():
    with pytest.raises(UserError, match="--lossless compares chats"):
        compared(Engine(), Engine(), prompts=[Prompt(id="r/0", category="random", token_ids=(1, 2))])


def test_it_survives_json():
    found = compared(Engine(), Engine(lambda number, gap: number == 1050), tokens=3000)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Losslessness) == found


def test_nothing_compared_claims_nothing():
    empty = Losslessness(
        base="off",
        other="on",
        near_tie=0.25,
        greedy=Comparison(sampling="greedy"),
        seeded=Comparison(sampling="seeded"),
    )
    assert empty.sentence == "on against off: nothing was compared"
    assert empty.lines()[1] == "greedy: nothing was compared"


@pytest.mark.slow
def test_our_own_server_has_no_defect():
    """The demo model with its head against the same without: every token, of the reasoning too."""
    with served("demo", "--draft", "none") as off, served("demo", "--draft", "auto", "--draft-tokens", "3") as on:
        arms = [Arm(name=name, url=one.url) for name, one in (("off", off), ("on", on))]
        pairs = [(arm, identify(arm)) for arm in arms]
        found = asyncio.run(compare(*pairs, builtin("chat"), tokens=800, max_tokens=128))
    print("\n".join(found.lines()))
    assert not found.ended and found.greedy.num_failed == 0
    assert found.greedy.num_identical == found.greedy.num_answers > 2
    assert found.seeded.num_identical == found.seeded.num_answers > 2
