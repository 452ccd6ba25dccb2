"""Texts in pieces have the tokens that they have as a whole, and the pieces are short."""

from __future__ import annotations

import base64
import inspect
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import InvalidRequest, TooManyTokens
from eyas.base.tokens import cuts
from eyas.base.tokens.cuts import DEMO, MAX_RUN, O200K, PIECE, cut_after
from eyas.base.tokens.tokenizer import Tokenizer

# Of every class that a pattern tells apart, contractions, marks, and what has been of one class and then of another.
CHARS = [
    *"aZs '\"'.,/-_!(0 9\n\r\t 7",
    *("'s", "'LL", "  ", "\r\n", "\n\n", "the", " the"),
    *("\u00e9", "e\u0301", "\u0e01\u0e33", "\u01c5", "\u02b0", "\u2160", "\u00b2"),
    *("\u4e2d", "\u3002", "\uff0c", "\u3042", "\u30a2", "\u30fb", "\u30fc"),
    *("\U0001f985", "\u200d", "\u00a0", "\u3000", "\u180e"),
    *("\x1c", "\x85", "\u2028", "\u200b", "\ufeff", "\u0130", "\u017f", "\ud800", "\U000e0001", "<|end|>"),
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(CHARS), max_size=60).map("".join) | st.text(max_size=60)


@pytest.fixture(scope="module", params=["gpt2", O200K, DEMO], ids=["gpt2", "o200k", "demo"])
def tokenizer(request, small_folder, tmp_path_factory) -> Tokenizer:
    """The small vocabulary under each of the known pre-tokenizers."""
    raw = json.loads((small_folder / "tokenizer.json").read_text())
    if request.param != "gpt2":
        raw["pre_tokenizer"] = split_by(request.param)
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_text(json.dumps(raw))
    return Tokenizer.load(folder)


def split_by(pattern: str) -> dict:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, last]}


@pytest.fixture(scope="module", autouse=True)
def short_pieces():
    """A cut at each place where one may be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "PIECE", 1)
        yield


def random_texts() -> list[str]:
    rng, chars = random.Random(0), [char for char in CHARS if char.isascii() or char.encode(errors="ignore")]
    return ["".join(rng.choices(chars, k=400)) for _ in range(100)]


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    """What the library makes of it at once."""
    clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return tokenizer._inner.encode(clean, add_special_tokens=False).ids


def pieces(text: str) -> list[str]:
    out, start = [], 0
    while start < len(text):
        stop = cut_after(text, start)
        out.append(text[start:stop])
        start = stop
    return out


@given(text=TEXTS)
def test_pieces_have_the_tokens_of_the_whole(tokenizer, text):
    assert tokenizer.encode(text) == whole(tokenizer, text)


def test_pieces_are_split_as_the_whole_is(tokenizer):
    """Before BPE: merges that the vocabulary lacks hide nothing. Each character comes beside each other."""
    split = tokenizer._inner.pre_tokenizer.pre_tokenize_str
    for text in random_texts():
        assert [part for piece in pieces(text) for part, _ in split(piece)] == [part for part, _ in split(text)]


def test_pieces_have_the_tokens_that_tiktoken_gives_the_whole(o200k):
    for text in random_texts():
        assert [one for piece in pieces(text) for one in o200k.encode(piece)] == o200k.encode(text)


@given(text=TEXTS, limit=st.integers(-2, 80))
def test_counting_ends_when_it_is_certain(tokenizer, text, limit):
    ids = whole(tokenizer, text)
    try:
        assert tokenizer.encode_within(text, limit) == ids
    except TooManyTokens as error:
        assert limit < error.at_least <= len(ids)


@pytest.mark.parametrize(
    "text",
    [
        inspect.getsource(inspect),
        json.dumps({str(i): i for i in range(9999)}, separators=(",", ":")),
        base64.b64encode(random.Random(0).randbytes(99_999)).decode(),
        "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u6211\u4eec\u5728\u8fd9\u91cc\uff01" * 5000,
        "\u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440 " * 9999,
    ],
    ids=["code", "json", "base64", "chinese", "russian"],
)
def test_usual_texts_come_in_short_pieces(text):
    assert max(map(len, pieces(text))) < 1000


@pytest.mark.parametrize("char", ["a", " ", "7", "\n", "=", "\U0001f985"])
def test_a_run_is_bounded_in_bytes(tokenizer, char):
    longest = char * (MAX_RUN // len(char.encode()))
    assert pieces(longest) == [longest] or char == "7"
    for text in (longest + char, f"x {longest}{char}", longest * 9):
        with pytest.raises(InvalidRequest, match="256 KiB without a word boundary"):
            tokenizer.encode(text)


def test_only_what_is_known_is_cut(small_folder, tmp_path):
    raw = json.loads((small_folder / "tokenizer.json").read_text())
    run = "a" * (MAX_RUN + 1)
    for pre_tokenizer in (split_by(r"\s+"), raw["pre_tokenizer"] | {"add_prefix_space": True}):
        (tmp_path / "tokenizer.json").write_text(json.dumps(raw | {"pre_tokenizer": pre_tokenizer}))
        tokenizer = Tokenizer.load(tmp_path)
        for text in ("a b, c1 d", run):
            assert tokenizer.encode(text) == whole(tokenizer, text)


def test_a_text_that_cannot_fit_is_not_read(small, monkeypatch):
    seen = []
    monkeypatch.setattr(cuts, "PIECE", PIECE)
    monkeypatch.setattr(type(small), "_encode_piece", lambda self, text: seen.append(len(text)) or [0] * len(text))
    with pytest.raises(TooManyTokens) as caught:
        small.encode_within("7" * 10**6, 10**4)
    assert not seen and caught.value.at_least == -(-(10**6) // small.longest)
    with pytest.raises(TooManyTokens) as caught:
        small.encode_within("7 " * 300_000, 10**5)
    assert 9e4 < sum(seen) < 10**5 + PIECE and caught.value.at_least > sum(seen)
