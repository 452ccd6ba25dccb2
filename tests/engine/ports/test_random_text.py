"""Random tokens as text: as many as there were, in Harmony's form, for any cut into rounds."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.bundled import DEMO
from eyas.base.harmony.parser import StreamParser
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import FinishReason, RoundTrace, TokenEvent, TokenLogprob
from eyas.engine.ports.random_text import RandomText

TOKENIZER = Tokenizer.load(DEMO)
IDS = st.integers(0, 201_087)


def event(ids, *, choice=0, finish=None, **fields):
    return TokenEvent(request_id="a", choice=choice, token_ids=tuple(ids), finish=finish, **fields)


@pytest.fixture(scope="module")
def shown():
    return RandomText(SimpleNamespace(tokenizer=TOKENIZER))


@given(rounds=st.lists(st.lists(IDS, min_size=1, max_size=8), min_size=1, max_size=8))
def test_an_answer_is_a_final_message_of_as_many_tokens(shown, rounds):
    parser = StreamParser(TOKENIZER)
    num_tokens = sum(map(len, rounds))
    num_shown = 0
    for number, ids in enumerate(rounds, 1):
        finish = FinishReason.LENGTH if number == len(rounds) else None
        read = shown.readable(event(ids, finish=finish, round=RoundTrace(tuple(ids), 0)))
        assert len(read.token_ids) == len(ids) == len(read.round.draft_ids)
        deltas = parser.feed(read.token_ids)
        assert all(delta.channel == "final" for delta in deltas)
        num_shown += sum(delta.text.count(" ") for delta in deltas)
    parser.finish()
    assert num_shown == max(num_tokens - 3, 0)  # the header has three, and each word a blank


def test_choices_are_apart_and_log_probabilities_name_words(shown):
    one = shown.readable(event([200_000]))
    other = shown.readable(event([200_000], choice=1, logprobs=(TokenLogprob(logprob=-1.0, top=((200_000, -1.0),)),)))
    assert one.token_ids == other.token_ids == (TOKENIZER.special["<|channel|>"],)
    assert TOKENIZER.token_bytes(other.logprobs[0].top[0][0]).isascii()
    for choice in (0, 1):
        shown.readable(event([1], choice=choice, finish=FinishReason.CANCELLED))
    assert shown.readable(event([1], finish=FinishReason.STOP)).token_ids == one.token_ids  # a new answer of that name
