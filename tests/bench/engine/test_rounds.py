"""Counting over content: worked examples, and properties against the Harmony parser and a plain simulation."""

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.support.gateway import reply_ids

from eyas.base.harmony.parser import StreamParser
from eyas.base.types import RoundTrace, TokenEvent
from eyas.bench.engine.rounds import Acceptance, ContentMarker, count_content, count_rounds


def event(ids, num_drafts=None, num_accepted=0):
    trace = None if num_drafts is None else RoundTrace(draft_ids=(0,) * num_drafts, num_accepted=num_accepted)
    return TokenEvent(request_id="x", choice=0, token_ids=tuple(ids), round=trace)


def cut(ids, sizes, num_drafts):
    """Events of an answer: one token from the prompt, then rounds of `sizes` tokens, the last one cut by the end."""
    events, at = [event(ids[:1])], 1
    for size in sizes:
        tokens = ids[at : at + size]
        at += size
        if tokens:
            events.append(event(tokens, num_drafts, min(size - 1, len(tokens))))
    return events


def test_a_round_counts_from_its_first_token_to_the_end_of_content(codec):
    s = codec.special
    start, message, end, ret = (s[f"<|{name}|>"] for name in ("start", "message", "end", "return"))
    events = [
        event([s["<|channel|>"]]),  # from the prompt's last position: no round
        event([40, message, 50], 4, 2),  # begins with a header: does not count
        event([51, 52, 53], 4, 2),
        event([54, end, start, 41], 4, 3),  # one token of content; the drafts behind it are headers
        event([message, 60], 4, 1),
        event([61, ret], 4, 2),  # stopped: two accepted, no bonus token
    ]
    counts = count_content(events, codec)
    assert dict(counts.histogram) == {3: 1, 1: 2}
    assert (counts.num_tokens, counts.num_rounds, counts.length) == (5, 3, 5 / 3)
    assert dict(counts.reached) == {1: 3, 2: 1, 3: 1} and dict(counts.accepted) == {1: 3, 2: 1, 3: 0}
    everything = count_rounds(events)
    assert everything.num_tokens == 14 and everything.num_rounds == 5
    # The last round was ended by a stop token: whether its third draft would have been accepted is not known.
    assert dict(everything.reached) == {1: 5, 2: 5, 3: 3, 4: 1}


def test_the_figures_of_the_json():
    counts = Acceptance()
    for size in (1, 3, 3, 2):
        counts.add(size, 2, size - 1)
    assert counts.json() == {
        "acceptance_length": 2.25,
        "rounds": 4,
        "tokens": 9,
        "drafts_per_round": 2.0,
        "histogram": {"1": 1, "2": 1, "3": 2},
        "accepted_if_reached": [0.75, 0.6667],
        "accepted_of_rounds": [0.75, 0.5],
    }


@given(st.lists(st.text("ab <>|\u00fc", max_size=12), min_size=2, max_size=2), st.integers(0, 99))
def test_content_is_what_the_parser_calls_content(codec, texts, seed):
    ids = reply_ids(codec, *texts)
    rng, marker, marks = random.Random(seed), ContentMarker(codec), []
    at = 0
    while at < len(ids):
        size = rng.randint(1, 5)
        marks += marker.mark(ids[at : at + size])
        at += size
    parser = StreamParser(codec)
    parser.feed(ids)
    assert codec.decode(i for i, mark in zip(ids, marks, strict=True) if mark) == "".join(
        message.content for message in parser.messages
    )


@given(st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_content_never_looks_better_than_its_tokens_allow(codec, sizes):
    ids = reply_ids(codec)
    events = cut(ids, sizes, 4)
    content, everything = count_content(events, codec), count_rounds(events)
    num_content = sum(ContentMarker(codec).mark(ids))
    assert content.num_tokens <= min(num_content, everything.num_tokens)
    assert content.num_rounds <= everything.num_rounds
    for position, number in content.reached.items():
        assert content.accepted[position] <= number <= content.num_rounds
    # With no cut at all inside a long message, each round counts as it is.
    if content.histogram:
        assert max(content.histogram) <= max(sizes)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30))
def test_the_length_follows_from_the_positions(rounds):
    """Without cuts, acceptance length = 1 + sum of the shares accepted of all rounds."""
    counts = Acceptance()
    for num_drafts, wanted in rounds:
        num_accepted = min(num_drafts, wanted)
        counts.add(num_accepted + 1, num_drafts, num_accepted)
    total = sum(counts.accepted.values())
    assert counts.num_tokens == counts.num_rounds + total
    for position in counts.reached:
        previous = counts.accepted[position - 1] if position > 1 else counts.num_rounds
        assert counts.accepted[position] <= counts.reached[position] <= previous
