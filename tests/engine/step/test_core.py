"""What a request gets: stops, budgets, log-probabilities, choices, seeds, refusals."""

import pytest
import torch
from tests.engine.support.exactness import CONTEXT, build, run
from tests.model.support.forward import logits_of

from eyas.base.errors import InvalidRequest
from eyas.base.types import FinishReason, Request, SamplingParams

PROMPT = tuple(range(40, 70))
DRAFTERS = ("none", "ngram", "eagle3")


def answer(model, *, prompt=PROMPT, drafter="none", request_id="r", **params):
    """[(tokens, finish, logprobs)] of the choices of one request on a fresh engine."""
    core = build(model, drafter=drafter, concurrency=4)
    request = Request(request_id=request_id, prompt_ids=prompt, params=SamplingParams(**params))
    results = run(core, [request], check=True)
    return [results[request_id, choice] for choice in range(request.params.n)]


@pytest.fixture(scope="module")
def greedy(random_model):
    """The first 40 greedy tokens."""
    return answer(random_model, temperature=0, max_tokens=40, ignore_eos=True)[0][0]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_stop_token_ends_the_answer_and_is_part_of_it(random_model, greedy, drafter):
    stop = greedy[12]
    end = greedy.index(stop) + 1
    result = answer(random_model, temperature=0, drafter=drafter, stop_token_ids=(511, stop), ignore_eos=True)
    assert result == [(greedy[:end], FinishReason.STOP, [])]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens_is_exact(random_model, greedy, drafter, max_tokens):
    result = answer(random_model, temperature=0, drafter=drafter, max_tokens=max_tokens, ignore_eos=True)
    assert result == [(greedy[:max_tokens], FinishReason.LENGTH, [])]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_context_is_filled_to_the_last_token(random_model, drafter):
    prompt = tuple(index % 500 for index in range(CONTEXT - 5))
    ((tokens, finish, _),) = answer(random_model, prompt=prompt, drafter=drafter, ignore_eos=True, seed=1)
    assert (len(tokens), finish) == (5, FinishReason.LENGTH)


def test_end_of_turn_ids_of_the_model_stop_unless_ignored(random_model):
    eos = random_model.config.eos_ids
    settings = {"temperature": 0, "logit_bias": {eos[1]: 100.0}, "max_tokens": 5}
    assert answer(random_model, **settings) == [([eos[1]], FinishReason.STOP, [])]
    assert answer(random_model, **settings, ignore_eos=True) == [([eos[1]] * 5, FinishReason.LENGTH, [])]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_min_tokens_hold_back_every_stop(random_model, drafter):
    eos, own = random_model.config.eos_ids, 17
    bias = {eos[0]: 100.0, eos[1]: 90.0, own: 80.0}  # further apart than the model's own logits
    ((tokens, finish, _),) = answer(
        random_model, drafter=drafter, temperature=0, min_tokens=6, stop_token_ids=(own,), logit_bias=bias
    )
    assert (len(tokens), finish) == (7, FinishReason.STOP)
    assert tokens[-1] == eos[0] and not {*eos, own} & set(tokens[:-1])


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_logprobs_are_the_log_softmax_of_the_raw_logits(random_model, drafter):
    """Also under temperature, filters, penalties and bias, which they do not see."""
    ((tokens, _, logprobs),) = answer(
        random_model,
        drafter=drafter,
        temperature=1.3,
        top_k=9,
        repetition_penalty=1.4,
        logit_bias={5: 3.0},
        logprobs=4,
        seed=3,
        max_tokens=30,
        ignore_eos=True,
    )
    with torch.inference_mode():
        logits = logits_of(random_model.config, random_model.weights, torch.tensor([PROMPT + tuple(tokens)]))[0]
    expected = logits[len(PROMPT) - 1 : -1].log_softmax(-1)
    assert len(logprobs) == len(tokens) == 30
    for row, token, found in zip(expected, tokens, logprobs, strict=True):
        assert found.logprob == pytest.approx(row[token].item(), abs=1e-4)
        assert [value for _, value in found.top] == pytest.approx(row.topk(4).values.tolist(), abs=1e-4)
        assert [value for _, value in found.top] == pytest.approx([row[i].item() for i, _ in found.top], abs=1e-4)


def test_each_request_of_a_batch_gets_the_logprobs_that_it_asked_for(random_model):
    requests = [
        Request(
            request_id=str(wanted),
            prompt_ids=PROMPT,
            params=SamplingParams(logprobs=wanted, max_tokens=4, seed=1, ignore_eos=True),
        )
        for wanted in (None, 0, 1, 20)
    ]
    results = run(build(random_model, concurrency=4), requests)
    assert [[len(item.top) for item in results[r.request_id, 0][2]] for r in requests] == [
        [],
        [0] * 4,
        [1] * 4,
        [20] * 4,
    ]
    assert len({tuple(results[r.request_id, 0][0]) for r in requests}) == 1


def test_choices_differ_and_share_the_pages_of_the_prompt(random_model):
    core = build(random_model, concurrency=4, page_size=8)
    params = SamplingParams(n=4, seed=5, max_tokens=12, ignore_eos=True)
    core.add(Request(request_id="r", prompt_ids=PROMPT, params=params), lambda event: None)
    held = []
    while not core.is_idle:
        core.step()
        held.append([tuple(s.full_pages[:3]) for s in core.scheduler.running])
    assert [4 * [pages[0]] for pages in held if len(pages) == 4] == [pages for pages in held if len(pages) == 4] != []
    assert core.stats().num_prompt_tokens == len(PROMPT) and core.stats().num_cached_tokens == 0  # of requests
    answers = [tuple(tokens) for tokens, _, _ in answer(random_model, n=4, seed=5, max_tokens=12, ignore_eos=True)]
    assert len(set(answers)) == 4
    assert answers[0] == tuple(answer(random_model, seed=5, max_tokens=12, ignore_eos=True)[0][0])


def test_greedy_choices_are_equal(random_model):
    answers = answer(random_model, n=3, temperature=0, max_tokens=8)
    assert answers[0] == answers[1] == answers[2]


def test_seeds_repeat_and_differ(random_model):
    one, again, other = (answer(random_model, seed=seed, max_tokens=16)[0][0] for seed in (1, 1, 2**62 + 1))
    assert one == again != other


def test_without_a_seed_answers_differ_but_an_engine_with_a_seed_repeats(random_model):
    def two_answers():
        core = build(random_model, concurrency=1)
        return [
            run(core, [Request(request_id="r", prompt_ids=PROMPT, params=SamplingParams(max_tokens=16))])["r", 0][0]
            for _ in range(2)
        ]

    first, second = two_answers()
    assert first != second and two_answers() == [first, second]


def test_a_prompt_of_one_token(random_model):
    ((tokens, _, _),) = answer(random_model, prompt=(3,), drafter="eagle3", temperature=0, max_tokens=9)
    assert len(tokens) == 9 or tokens[-1] in random_model.config.eos_ids


def test_counters_and_events(random_model):
    core, events = build(random_model, drafter="ngram", draft_tokens=3, concurrency=2), []
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    repetitive = (5, 6, 7, 8) * 6
    core.add(Request(request_id="r", prompt_ids=repetitive, params=params), events.append)
    while not core.is_idle:
        core.step()
    stats = core.stats()
    assert events[0].round is None and len(events[0].token_ids) == 1
    rounds = [event.round for event in events[1:]]
    assert stats.num_rounds == len(rounds) and stats.num_generated_tokens == 40
    assert stats.num_draft_tokens == sum(len(r.draft_ids) for r in rounds)
    assert stats.num_accepted_tokens == sum(r.num_accepted for r in rounds)
    for event in events[1:]:
        accepted = event.round.num_accepted
        assert event.round.draft_ids[:accepted] == event.token_ids[:accepted]
    assert [event.finish for event in events[:-1]] == [None] * (len(events) - 1)


@pytest.mark.parametrize(
    ("prompt", "params", "named"),
    [
        ((), {}, "prompt"),
        ((1,) * CONTEXT, {}, "prompt"),
        ((512,), {}, "prompt"),
        ((-1,), {}, "prompt"),
        ((1,), {"stop_token_ids": (512,)}, "stop_token_ids"),
        ((1,), {"logit_bias": {-1: 1.0}}, "logit_bias"),
    ],
)
def test_what_cannot_run_is_refused_before_it_is_queued(random_model, prompt, params, named):
    core = build(random_model, concurrency=1)
    with pytest.raises(InvalidRequest) as refused:
        core.add(Request(request_id="r", prompt_ids=prompt, params=SamplingParams(**params)), print)
    assert refused.value.param == named
    assert core.is_idle


def test_an_id_in_use_is_refused_and_free_again_later(random_model):
    core = build(random_model, concurrency=1)
    request = Request(request_id="r", prompt_ids=PROMPT, params=SamplingParams(max_tokens=2))
    core.add(request, lambda event: None)
    with pytest.raises(InvalidRequest, match="'r' is running"):
        core.add(request, lambda event: None)
    while not core.is_idle:
        core.step()
    core.add(request, lambda event: None)


def test_cancelling_an_unknown_id_does_nothing(random_model):
    build(random_model, concurrency=1).cancel("nobody")


def test_fail_all_ends_everything_with_the_message(random_model):
    core, events = build(random_model, concurrency=1, lag=1), []
    for name in "ab":
        core.add(Request(request_id=name, prompt_ids=PROMPT, params=SamplingParams(n=2)), events.append)
    core.step()
    core.step()
    core.fail_all("gone", FinishReason.ERROR)
    last = [event for event in events if event.finish is not None]
    assert [(e.request_id, e.choice, e.finish, e.error) for e in last] == [
        (name, choice, FinishReason.ERROR, "gone") for name in "ab" for choice in range(2)
    ]
    assert core.is_idle and core.stats().pages_used == {"full": 0, "sliding": 0}


def test_a_receiver_that_fails_costs_its_own_request_only(random_model, greedy, caplog):
    core, other = build(random_model, drafter="eagle3", concurrency=4), []

    def fail(event):
        raise RuntimeError("receiver gone")

    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    core.add(Request(request_id="bad", prompt_ids=PROMPT, params=params), fail)
    core.add(Request(request_id="good", prompt_ids=PROMPT, params=params), lambda e: other.extend(e.token_ids))
    while not core.is_idle:
        core.step()
    core.scheduler.check()
    assert other == greedy
    assert core.scheduler.full.num_held == 0
    assert "receiver gone" in caplog.text


@pytest.mark.parametrize("field", ["top_k", "min_tokens"])
def test_numbers_that_no_tensor_holds_are_refused_before_they_reach_the_engine(field):
    for value in (2**31, 2**63 - 1, 10**30):
        with pytest.raises(InvalidRequest, match=field):
            SamplingParams(**{field: value})


def test_one_choice_can_be_cancelled_alone(random_model):
    core, events = build(random_model, concurrency=4), []
    params = SamplingParams(n=3, seed=1, max_tokens=30, ignore_eos=True)
    core.add(Request(request_id="r", prompt_ids=PROMPT, params=params), events.append)
    for _ in range(6):
        core.step()
    core.cancel("r", 1)
    while not core.is_idle:
        core.step()
    finishes = {event.choice: event.finish for event in events if event.finish}
    assert finishes == {0: FinishReason.LENGTH, 1: FinishReason.CANCELLED, 2: FinishReason.LENGTH}


def test_cached_pages_are_shared_among_equal_salts_only(random_model):
    core, cached = build(random_model, concurrency=1, page_size=8), []
    for number, salt in enumerate(("", "a", "b", "a", "")):
        request = Request(
            request_id=str(number), prompt_ids=PROMPT, params=SamplingParams(max_tokens=1), cache_salt=salt
        )
        core.add(request, lambda event: cached.append(event.num_cached))
        while not core.is_idle:
            core.step()
    assert cached == [0, 0, 0, 24, 24]


def test_drafts_that_the_budget_cut_are_no_misses(random_model):
    """The last round of an answer has room for fewer drafts than were planned."""
    core, seen = build(random_model, drafter="ngram", draft_tokens=4, concurrency=1), []
    core.draft_length.observe = lambda outcome: seen.extend((t.asked, t.accepted) for t in outcome.tried)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    core.add(Request(request_id="r", prompt_ids=PROMPT, params=params), lambda event: None)
    while not core.is_idle:
        core.step()
    left, expected = 3, []
    for _, accepted in seen:  # the bonus token takes the last of the budget
        expected.append((min(4, left - 1), accepted))
        left -= accepted + 1
    assert seen == expected and left == 0
