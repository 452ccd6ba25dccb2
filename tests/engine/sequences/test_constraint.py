"""Masks of rows equal masks after the tokens one by one; looking ahead leaves no trace; caches, limits, refusals."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.base.bundled import DEMO
from eyas.base.errors import InvalidRequest, UserError
from eyas.base.tokens.tokenizer import Tokenizer
from eyas.base.types import SamplingParams
from eyas.engine.sequences import constraint as module
from eyas.engine.sequences.constraint import Constraint, GrammarCache, GrammarMatcher, num_words

VOCAB, EOS = 4096, (4084, 4094, 4081)
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}'
GRAMMAR = f'start: <|channel|> "final" <|message|> body <|return|>\nbody: %json {SCHEMA}\n'
OTHERS = (
    "start: /[a-f ]{1,30}/ <|return|>",
    "start: b* <|return|>\nb[max_tokens=3]: /[a-c]*/",
    'start: ("ab" | "cd" start) start? <|return|>?',
)
TOKENS = tuple(range(1, 8))  # few, so that bad words often come near


@pytest.fixture(scope="module")
def cache():
    return GrammarCache(DEMO / "tokenizer.json", vocab_size=VOCAB, eos_ids=EOS)


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(DEMO)


def masks(constraint, drafts=()):
    """Allowed ids of each row."""
    words = np.full((len(drafts) + 1, num_words(VOCAB)), 0xFFFFFFFF, dtype=np.uint32)
    list(constraint.rows(drafts, words))
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    return [frozenset(np.flatnonzero(row).tolist()) for row in bits]


def with_grammar(cache, text):
    return Constraint(SamplingParams(grammar=text), VOCAB, GrammarMatcher(cache.compile(text).result(), EOS))


@pytest.mark.parametrize("text", (GRAMMAR, *OTHERS))
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_rows_equal_plain_decoding_and_looking_ahead_leaves_no_trace(cache, text, seed):
    """A walk through the grammar; at each point drafts that are right for a while and then may not be."""
    rng = random.Random(seed)
    ahead, plain, tokens = with_grammar(cache, text), with_grammar(cache, text), []
    while len(tokens) < 40:
        walk, expected = with_grammar(cache, text), []
        walk.advance(tokens)
        drafts = []
        for _ in range(rng.randint(0, 5)):
            allowed = sorted(masks(walk)[0])
            expected.append(masks(walk)[0])
            drafts.append(rng.choice(allowed) if rng.random() < 0.8 else rng.randrange(VOCAB))
            if drafts[-1] not in allowed or drafts[-1] in EOS:
                break
            walk.advance(drafts[-1:])
        else:
            expected.append(masks(walk)[0])
        assert masks(ahead, drafts)[: len(expected)] == expected
        assert masks(ahead) == masks(plain)
        tokens.append(rng.choice(sorted(expected[0])))
        if tokens[-1] in EOS:
            return
        ahead.advance(tokens[-1:])
        plain.advance(tokens[-1:])


def banned_by_hand(words, tokens):
    """Ids that would complete a word behind the tokens."""
    return {
        word[-1]
        for word in words
        if len(word) <= len(tokens) + 1 and tuple(tokens)[len(tokens) - len(word) + 1 :] == word[:-1]
    }


@given(
    words=st.lists(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6),
    tokens=st.lists(st.sampled_from(TOKENS), max_size=12),
    drafts=st.lists(st.sampled_from(TOKENS), max_size=5),
    cuts=st.lists(st.integers(1, 4), max_size=12),
    allowed=st.none() | st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9).map(tuple),
)
@settings(max_examples=60, deadline=None)
def test_bad_words_and_allowed_ids_by_hand(words, tokens, drafts, cuts, allowed):
    """However the committed tokens arrive."""
    constraint = Constraint(SamplingParams(bad_words=tuple(words), allowed_token_ids=allowed), VOCAB, None)
    rest = list(tokens)
    for cut in [*cuts, len(tokens)]:
        constraint.advance(rest[:cut])
        rest = rest[cut:]
    constraint.advance(rest)
    assert constraint.num_consumed == len(tokens)
    for row, found in enumerate(masks(constraint, drafts)):
        everything = set(range(VOCAB)) if allowed is None else set(allowed)
        assert found == everything - banned_by_hand(words, tokens + drafts[:row])


def test_choices_share_one_mask_of_allowed_ids():
    params = SamplingParams(n=2, allowed_token_ids=tuple(range(0, VOCAB, 3)) * 2)
    one, other = (Constraint(params, VOCAB, None) for _ in range(2))
    assert one._allowed is other._allowed
    assert masks(one) == [frozenset(range(0, VOCAB, 3))]


def test_a_grammar_ends_with_its_own_token_or_any_end_of_turn(cache, tokenizer):
    prefix = [tokenizer.special["<|channel|>"], *tokenizer.encode("final"), tokenizer.special["<|message|>"]]
    for end, expected in ((" <|return|>", {4084}), (" <|call|>", {4094}), ("", set(EOS))):
        constraint = with_grammar(cache, GRAMMAR.replace(" <|return|>", end))
        constraint.advance(prefix + tokenizer.encode('{"a": 1}'))
        assert masks(constraint) == [expected]


def test_special_tokens_are_no_text(cache, tokenizer):
    constraint = with_grammar(cache, "start: /(.|\\n)*/ <|return|>")
    assert masks(constraint)[0] & set(tokenizer.special.values()) == {tokenizer.special["<|return|>"]}


def test_a_limit_met_by_a_draft_ends_nothing_unless_the_draft_is_drawn(tokenizer):
    # Items of the parser grow with each x; y stays cheap.
    text = 'start: a <|return|>\na: "x" a | "x" a a | "y"\n'
    limits = {"step_max_items": 60}
    cache = GrammarCache(DEMO / "tokenizer.json", vocab_size=VOCAB, eos_ids=EOS, limits=limits)
    x = tokenizer.encode("x")[0]
    constraint, count = with_grammar(cache, text), 0
    while all(masks(constraint, [x])[1:]):
        constraint.advance([x])
        count += 1
        assert count < 60, "no limit was met"
    here = masks(constraint, [x])
    assert here[0] and not here[1] and "cannot be followed" in constraint.failure
    assert masks(constraint) == here[:1]
    assert constraint.failure == module.NO_TOKEN
    constraint.advance([x])
    assert masks(constraint, [x])[0] == frozenset() and "cannot be followed" in constraint.failure


def test_a_regular_expression_that_explodes_leaves_no_token(cache, tokenizer):
    constraint = with_grammar(cache, "start: /((a{1000}){1000}){1000}/")
    for _ in range(5):
        if allowed := masks(constraint)[0]:
            assert allowed == {tokenizer.encode("a")[0]}
            constraint.advance(sorted(allowed))
    assert masks(constraint) == [frozenset()]
    assert constraint.failure.endswith("too many expressions constructed")


@pytest.mark.parametrize("is_composed", [False, True])
def test_an_ambiguous_grammar_comes_to_an_end(cache, tokenizer, is_composed):
    """Its parser takes time with the cube of the tokens."""
    text = 'start: s\ns: s s | "a"'
    if is_composed:  # with a schema beside it, whose rows may be longer
        inner = text + "\nb: %json {}"
        text = json.dumps(
            {"grammars": [{"name": "t", "lark_grammar": "start: @b"}, {"name": "b", "lark_grammar": inner}]}
        )
    constraint, letter, count = with_grammar(cache, text), tokenizer.encode("a")[0], 0
    while masks(constraint)[0]:
        constraint.advance([letter])
        count += 1
        assert count < 120
    assert count > 80 and "Current row has" in constraint.failure


def test_what_is_no_grammar_is_refused_with_the_reason(cache):
    with pytest.raises(InvalidRequest, match=r"unknown name.*foo") as refused:
        cache.compile("start: foo").result()
    assert refused.value.param == "grammar"
    with pytest.raises(InvalidRequest, match="cannot be used"):
        cache.compile('start: %json {"type": "nonsense"}').result()


def test_a_vocabulary_that_cannot_be_used_is_named():
    without = GrammarCache(None, vocab_size=VOCAB, eos_ids=EOS)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        without.compile("start: /a/").result()
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be used"):
        GrammarCache(DEMO / "tokenizer.json", vocab_size=VOCAB, eos_ids=(VOCAB + 1,)).prepare()


def test_ids_that_pad_the_vocabulary_are_never_allowed():
    cache = GrammarCache(DEMO / "tokenizer.json", vocab_size=VOCAB + 70, eos_ids=EOS)
    cache.prepare()
    matcher = GrammarMatcher(cache.compile("start: /(.|\\n)*/").result(), EOS)
    words = np.full((1, num_words(VOCAB + 70)), 0xFFFFFFFF, dtype=np.uint32)
    list(matcher.rows([], words))
    allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    assert len(allowed) > 3000 and allowed.max() < VOCAB


def test_the_cache_keeps_the_last_used(monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHED_GRAMMARS", 2)
    cache = GrammarCache(DEMO / "tokenizer.json", vocab_size=VOCAB, eos_ids=EOS)
    texts = ["start: /a/", "start: /b/", "start: /c/"]
    first, second = cache.compile(texts[0]), cache.compile(texts[1])
    assert cache.compile(texts[0]) is first
    cache.compile(texts[2])
    assert cache.compile(texts[0]) is first and cache.compile(texts[1]) is not second


@pytest.mark.parametrize("name", ["LLTokenizer", "LLMatcher"])
def test_a_fault_that_passes_is_not_remembered(monkeypatch, name):
    def out_of_memory(*args, **kwargs):
        raise MemoryError

    cache = GrammarCache(DEMO / "tokenizer.json", vocab_size=VOCAB, eos_ids=EOS)
    with monkeypatch.context() as fault:
        fault.setattr(f"llguidance.{name}", out_of_memory)
        with pytest.raises(MemoryError):
            cache.compile("start: /a/").result()
    assert cache.compile("start: /a/").result() is cache.compile("start: /a/").result()
    broken = cache.compile("start: foo")
    assert isinstance(broken.exception(), InvalidRequest) and cache.compile("start: foo") is broken


def test_sequences_of_one_grammar_do_not_share_their_state(cache, tokenizer):
    one, other = with_grammar(cache, GRAMMAR), with_grammar(cache, GRAMMAR)
    before = masks(other)
    one.advance([tokenizer.special["<|channel|>"]])
    assert masks(other) == before != masks(one)
