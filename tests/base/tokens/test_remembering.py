"""A codec with a memory encodes as the one without, keeps what it may keep, and no more."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.base.errors import TooManyTokens
from eyas.base.tokens.remembering import ENTRY_BYTES, RememberingCodec
from eyas.base.tokens.tokenizer import Tokenizer

TEXTS = st.lists(st.sampled_from([*"ab \n\u00e9\ud800", "the ", "<|end|>" * 9, "x" * 64]), max_size=40).map("".join)


class Counting:
    """The small tokenizer; `asked` are the texts that it encoded."""

    def __init__(self, inner):
        self.inner, self.asked = inner, []
        self.special, self.longest, self.token_bytes = inner.special, inner.longest, inner.token_bytes

    def encode(self, text):
        self.asked.append(text)
        return self.inner.encode(text)

    def encode_within(self, text, limit):
        self.asked.append(text)
        return self.inner.encode_within(text, limit)


@pytest.fixture
def counting(small_folder):
    return Counting(Tokenizer.load(small_folder))


def result_of(codec, text, limit):
    try:
        return codec.encode(text) if limit is None else codec.encode_within(text, limit)
    except TooManyTokens as error:
        return str(error)


@pytest.fixture(scope="module")
def codec(small_folder):
    return Tokenizer.load(small_folder)


@settings(max_examples=60)
@given(calls=st.lists(st.tuples(TEXTS, st.none() | st.integers(0, 300)), max_size=12), room=st.integers(0, 4000))
def test_it_encodes_as_the_codec_does(codec, calls, room):
    remembering = RememberingCodec(codec, max_bytes=room)
    for text, limit in calls + calls:
        assert result_of(remembering, text, limit) == result_of(codec, text, limit)
        assert remembering.num_bytes <= room


def test_a_long_text_is_encoded_once(counting):
    remembering = RememberingCodec(counting)
    text = "a long text " * 10
    first = remembering.encode(text)
    first.append(0)  # the caller's own
    assert remembering.encode(text) == remembering.encode_within(text, 1000) == first[:-1]
    assert counting.asked == [text]
    assert remembering.encode("short") and remembering.encode("short")
    assert counting.asked == [text, "short", "short"]


def test_the_text_that_was_asked_for_longest_ago_is_forgotten(counting):
    texts = [letter * 100 for letter in "abc"]
    sizes = [ENTRY_BYTES + 4 * len(counting.inner.encode(text)) for text in texts]
    remembering = RememberingCodec(counting, max_bytes=sum(sizes) - 1)
    for text in (*texts[:2], texts[0], texts[2], texts[0], texts[2], texts[1]):
        remembering.encode(text)
    assert counting.asked == [*texts, texts[1]]
    assert remembering.num_bytes <= sum(sizes) - 1


def test_a_text_larger_than_the_memory_pushes_nothing_out(counting):
    small, large = "small text " * 8, "large text " * 1000
    remembering = RememberingCodec(counting, max_bytes=2000)
    for text in (small, large, small):
        remembering.encode(text)
    assert counting.asked == [small, large]


def test_threads_share_it(codec):
    remembering = RememberingCodec(codec, max_bytes=3000)
    texts = [f"{number} text " * 12 for number in range(20)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(remembering.encode, texts * 20)) == [codec.encode(text) for text in texts] * 20
    assert 0 < remembering.num_bytes <= 3000
