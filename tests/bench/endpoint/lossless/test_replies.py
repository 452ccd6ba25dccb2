"""Where two answers part, and what that is: exact cases, and answers of each engine's shape."""

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.bench.endpoint.lossless.replies import ENDED, Reply, Token, divergence, num_compared, reply_of

WORDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=30)


def reply(words, *, gap=3.0, best=None):
    """Tokens that are each the most probable one, with the runner-up `gap` behind."""
    tokens = tuple(Token(word, -0.1, {word: -0.1, best or f"not {word}": -0.1 - gap}) for word in words)
    return Reply(tokens=tokens, text="".join(words), num_tokens=len(words))


def found(base, other, *, seed=None, near_tie=0.25, **more):
    return divergence(base, other, prompt="chat/1", seed=seed, near_tie=near_tie, **more)


@given(WORDS)
def test_the_same_answer_does_not_part(words):
    assert found(reply(words), reply(words)) is None
    assert num_compared(reply(words), reply(words), None) == max(1, len(words))


@given(WORDS, WORDS)
def test_the_first_difference_is_the_end_of_the_common_beginning(first, second):
    where = found(reply(first), reply(second))
    common = next((i for i in range(31) if first[i : i + 1] != second[i : i + 1]), None) if first != second else None
    assert (where is None) == (first == second)
    if where is not None:
        assert (where.at, where.unit) == (common, "token")
        assert num_compared(reply(first), reply(second), where) == common + 1
        assert where.base == (first[common] if common < len(first) else ENDED)
        assert where.other == (second[common] if common < len(second) else ENDED)


@pytest.mark.parametrize(("gap", "kind"), [(0.0, "near tie"), (0.25, "near tie"), (0.26, "defect"), (5.0, "defect")])
def test_a_near_tie_is_by_the_gap_of_the_two_tokens(gap, kind):
    where = found(reply("ab", gap=gap, best="x"), reply("ax"))
    assert (where.at, where.kind) == (1, kind)
    assert where.gap == pytest.approx(gap)


def test_a_token_that_is_not_among_the_best_is_no_near_tie():
    where = found(reply("ab", gap=0.01, best="y"), reply("ax"))
    assert (where.kind, where.gap, where.is_wide) == ("defect", None, True)


def test_the_gap_may_come_from_the_other_arm():
    """llama-server gives no log-probabilities of drafted tokens."""
    bare = Reply(tokens=(Token("a"), Token("b")), text="ab", num_tokens=2)
    assert found(bare, reply("ax", gap=0.1, best="b")).kind == "near tie"
    assert found(reply("ax", gap=0.1, best="b"), bare).kind == "near tie"
    assert found(bare, Reply(tokens=(Token("a"), Token("x")), num_tokens=2)).kind == "unknown"


def test_an_answer_that_ends_early_is_judged_by_the_runner_up():
    assert found(reply("abc", gap=0.1), reply("ab")).kind == "near tie"
    where = found(reply("ab"), reply("abc", gap=4.0))
    assert (where.at, where.base, where.other, where.kind) == (2, ENDED, "c", "defect")


def test_answers_without_tokens_are_compared_as_text():
    base, other = (Reply(text=text, num_tokens=10) for text in ("0123456789", "01234x6789"))
    where = found(base, other)
    assert (where.at, where.unit, where.base, where.other, where.kind) == (5, "character", "56789", "x6789", "unknown")
    assert num_compared(base, other, where) == 5


def test_with_a_seed_noise_decides_and_no_gap():
    assert found(reply("ab", gap=0.0, best="x"), reply("ax"), seed=3).kind == "defect"
    assert found(reply("ab", gap=9.0), reply("ax"), seed=3, draws_otherwise=True).kind == "drawn"


def answer(entries, *, text, usage, reasoning=None, ids=None):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    if entries is not None:
        choice["logprobs"] = {"content": entries}
    if reasoning is not None:
        choice["message"]["reasoning_content"] = reasoning
    if ids is not None:
        choice["token_ids"] = ids
    return json.dumps({"choices": [choice], "usage": {"completion_tokens": usage}}).encode()


def entry(token, *others):
    top = [{"token": name, "logprob": -0.5 * i, "bytes": [1]} for i, name in enumerate((token, *others))]
    return {"token": token, "logprob": 0.0, "bytes": [1], "top_logprobs": top}


def test_tokens_of_a_whole_answer():
    got = reply_of(answer([entry("a", "x"), entry("b", "y")], text="ab", usage=3))
    assert [token.name for token in got.tokens] == ["a", "b"]  # the end has no entry
    assert got.tokens[0].top == {"a": 0.0, "x": -0.5}


def test_tokens_that_lack_the_reasoning_are_not_all():
    got = reply_of(answer([entry("a")], text="a", reasoning="so it is", usage=6))
    assert (got.tokens, got.text, got.num_tokens) == ((), "so it is\na", 6)


def test_ids_of_all_tokens_with_what_is_known_of_the_last():
    """Ours gives ids of all, log-probabilities of the answer alone."""
    entries = [entry("token_id:7", "token_id:9"), entry("token_id:7", "token_id:8")]
    got = reply_of(answer(entries, text="aa", reasoning="hm", usage=6, ids=[1, 7, 2, 7, 7, 3]))
    assert [token.name for token in got.tokens] == [f"token_id:{i}" for i in (1, 7, 2, 7, 7, 3)]
    assert [bool(token.top) for token in got.tokens] == [False, False, False, True, True, False]
    assert got.tokens[3].top == {"token_id:7": 0.0, "token_id:9": -0.5}


def test_zeros_of_llama_server_are_no_log_probabilities():
    bare = {"token": "b", "logprob": 0.0, "bytes": [1], "top_logprobs": []}
    got = reply_of(answer([entry("a", "x"), bare], text="ab", usage=2))
    assert (got.tokens[1].logprob, got.tokens[1].top) == (None, {})


def test_halves_of_a_character_differ_by_their_bytes():
    halves = [{"token": "\ufffd", "logprob": -0.1, "bytes": [value], "top_logprobs": []} for value in (240, 226)]
    first, second = (reply_of(answer([half], text="x", usage=1)) for half in halves)
    assert found(first, second).base == "bytes [240]"


def test_calls_of_tools_are_text():
    body = json.loads(answer(None, text=None, usage=4))
    body["choices"][0]["message"]["tool_calls"] = [{"function": {"name": "f", "arguments": "{}"}}]
    assert '"name":"f"' in reply_of(json.dumps(body).encode()).text.replace(" ", "")


@pytest.mark.parametrize("data", [b"", b"{}", b'{"choices": []}', b'{"choices": [{}]}', b"[1]", b"\xff"])
def test_what_is_no_answer_is_refused(data):
    with pytest.raises((msgspec.MsgspecError, ValueError)):
        reply_of(data)


def test_gaps_are_finite():
    where = found(reply("ab", gap=1.5, best="x"), reply("ax"))
    assert math.isfinite(where.gap)
