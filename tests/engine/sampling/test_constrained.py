"""Constrained requests in the engine: what they may draw, and how they end where they cannot go on."""

from concurrent.futures import Future

import pytest
from tests.engine.support.exactness import build, run

from eyas.base.bundled import DEMO
from eyas.base.types import FinishReason, Request, SamplingParams
from eyas.engine.round.state import DeviceState
from eyas.engine.sequences.constraint import NO_TOKEN, GrammarCache

PROMPT = tuple(range(40, 70))
SETUPS = [
    {"drafter": "none", "lag": 1},
    pytest.param({"drafter": "ngram", "draft_tokens": 3, "lag": 0}, marks=pytest.mark.slow),
    {"drafter": "eagle3", "draft_tokens": 4, "lag": 1},
]


def ask(request_id="r", **params):
    return Request(request_id=request_id, prompt_ids=PROMPT, params=SamplingParams(**({"seed": 3} | params)))


def events_of(core, *requests):
    events = []
    for request in requests:
        core.add(request, events.append)
    while not core.is_idle:
        core.step()
    core.scheduler.check()
    assert core.scheduler.full.num_held == 0
    return events


def last_of(events, request_id="r"):
    return [(e.finish, e.error) for e in events if e.request_id == request_id and e.finish is not None]


def tokens_of(events, request_id="r"):
    return [token for event in events if event.request_id == request_id for token in event.token_ids]


@pytest.mark.parametrize("setup", SETUPS)
def test_only_allowed_ids_are_drawn_and_no_bad_word_is_completed(random_model, setup):
    core = build(random_model, concurrency=4, **setup)
    allowed, words = (3, 4, 5, 509), ((3, 4), (5,), (4, 4, 4))
    rules = {"max_tokens": 60, "ignore_eos": True, "temperature": 1.5}
    events = events_of(
        core,
        ask("both", allowed_token_ids=allowed, bad_words=words, **rules),
        ask("allowed", allowed_token_ids=allowed, **rules),
        ask("free", **rules),
    )
    tokens = tokens_of(events, "both")
    assert len(tokens) == 60 and set(tokens) == {3, 4, 509}
    assert all(tuple(tokens[i : i + len(word)]) != word for word in words for i in range(60))
    assert set(tokens_of(events, "allowed")) == set(allowed)
    assert tokens_of(events, "free") == run(build(random_model, concurrency=1), [ask("free", **rules)])["free", 0][0]


@pytest.mark.parametrize("setup", SETUPS)
def test_a_constraint_that_leaves_no_token_ends_its_sequence_only(random_model, setup):
    core = build(random_model, concurrency=4, **setup)
    rules = {"max_tokens": 9, "ignore_eos": True, "temperature": 0}
    events = events_of(
        core,
        ask("now", allowed_token_ids=(5,), bad_words=((5,),), **rules),
        ask("later", allowed_token_ids=(5,), bad_words=((5, 5, 5),), **rules),
        ask("other", **rules),
    )
    assert last_of(events, "now") == last_of(events, "later") == [(FinishReason.ERROR, NO_TOKEN)]
    assert (tokens_of(events, "now"), tokens_of(events, "later")) == ([], [5, 5])
    assert last_of(events, "other") == [(FinishReason.LENGTH, None)]


def test_raw_logprobs_do_not_see_the_mask(random_model):
    free = run(build(random_model, concurrency=1), [ask(temperature=0, max_tokens=1, logprobs=5)])["r", 0]
    second = free[2][0].top[1][0]
    bound = run(
        build(random_model, concurrency=1),
        [ask(temperature=0, max_tokens=1, logprobs=5, allowed_token_ids=(second,))],
    )["r", 0]
    assert bound[0] == [second] and bound[2][0].top == free[2][0].top
    assert bound[2][0].logprob == free[2][0].top[1][1]


@pytest.mark.parametrize(
    ("grammar", "reason"), [("start: nowhere", "nowhere"), ("start: A\nA: /b/ & /c/", "cannot be used")]
)
def test_a_grammar_without_a_first_token_is_an_event_and_others_go_on(random_speaker, grammar, reason):
    core = build(random_speaker, concurrency=2)
    events = events_of(core, ask("bad", grammar=grammar, n=2), ask("good", max_tokens=3, ignore_eos=True))
    bad = [event for event in events if event.request_id == "bad"]
    assert [(event.choice, event.finish) for event in bad] == [(0, FinishReason.INVALID), (1, FinishReason.INVALID)]
    assert all(reason in event.error for event in bad)
    assert len(tokens_of(events, "good")) == 3
    assert core.stats().num_prompt_tokens == len(PROMPT)


def test_without_a_tokenizer_grammars_are_refused(random_model):
    ((finish, error),) = last_of(events_of(build(random_model, concurrency=1), ask(grammar="start: /a/")))
    assert finish is FinishReason.INVALID and "tokenizer.json" in error


def test_where_masks_start_goes_through_pinned_memory(random_model, monkeypatch):
    """Else the host waits for the drafts before it launches what verifies them."""
    core, on_device, seen = build(random_model, concurrency=1), DeviceState.on_device, []
    monkeypatch.setattr(
        DeviceState, "on_device", lambda self, numbers: seen.append(numbers) or on_device(self, numbers)
    )
    events_of(core, ask(allowed_token_ids=(3, 4, 5), max_tokens=2, ignore_eos=True))
    assert [[0], [len(PROMPT)]] in [numbers for numbers in seen if isinstance(numbers, list)]


def test_a_sound_grammar_that_was_not_compiled_is_no_mistake_of_the_request(random_speaker):
    core, events, compiled = build(random_speaker, concurrency=1), [], Future()
    core.grammars.compile = lambda grammar: compiled
    compiled.set_exception(MemoryError())
    core.add(ask(grammar="sound"), events.append)
    core.step()
    assert [(event.finish, event.error) for event in events] == [(FinishReason.ERROR, "MemoryError()")]


def test_cancelling_while_the_grammar_is_compiled(random_speaker):
    core, events, compiled = build(random_speaker, concurrency=2), [], Future()
    matcher = core.grammars.compile('start: "yes" | "no"').result()
    core.grammars.compile = lambda grammar: compiled
    core.add(ask(grammar="slow", n=2), events.append)
    assert core.stats().num_waiting == 2 and not core.is_idle
    core.cancel("r", 0)
    assert core.stats().num_waiting == 1
    core.step()
    assert [(event.choice, event.finish) for event in events] == [(0, FinishReason.CANCELLED)]
    compiled.set_result(matcher)
    while not core.is_idle:
        core.step()
    assert [event.finish for event in events if event.choice == 1][-1] is FinishReason.STOP
    compiled = Future()
    core.add(ask(grammar="slow"), events.append)
    core.fail_all("gone", FinishReason.ERROR)
    assert events[-1].error == "gone" and core.is_idle and core.stats().num_waiting == 0


@pytest.mark.parametrize("setup", SETUPS)
def test_a_limit_of_the_library_ends_the_sequence_that_met_it(random_speaker, setup):
    core = build(random_speaker, concurrency=2, **setup)
    core.grammars = GrammarCache(
        DEMO / "tokenizer.json",
        vocab_size=random_speaker.config.vocab_size,
        eos_ids=core.eos_ids,
        limits={"step_max_items": 60},
    )
    grammar = 'start: a <|return|>\na: "x" a | "x" a a | "y"\n'
    x = random_speaker.codec.encode("x")[0]
    rules = {"temperature": 0, "max_tokens": 40}
    events = events_of(
        core, ask(grammar=grammar, logit_bias={x: 100.0}, **rules), ask("other", ignore_eos=True, **rules)
    )
    ((finish, error),) = last_of(events)
    assert finish is FinishReason.ERROR and error.startswith("the grammar cannot be followed further: ")
    assert set(tokens_of(events)) == {x}
    assert last_of(events, "other") == [(FinishReason.LENGTH, None)]


def test_choices_of_one_grammar_differ_and_each_obeys(random_speaker):
    core = build(random_speaker, drafter="eagle3", concurrency=4)
    events = events_of(core, ask(grammar="start: /[a-z]{9,30}/ <|return|>", n=4, temperature=1.5, max_tokens=40))
    texts = set()
    for choice in range(4):
        ids = [token for event in events if event.choice == choice for token in event.token_ids]
        assert ids.pop() == random_speaker.codec.special["<|return|>"]
        text = random_speaker.codec.decode(ids)
        assert 9 <= len(text) <= 30 and text.isalpha() and text.islower()
        texts.add(text)
    assert len(texts) > 1
