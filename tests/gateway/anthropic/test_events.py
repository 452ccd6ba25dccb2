"""Deltas as events: whatever the engine's rounds are, the blocks are the same, and each is well formed."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.support.anthropic import Histories, blocks_of, unparsed
from tests.gateway.support.responses import spoken
from tests.gateway.turn.test_turn import read

from eyas.base.types import FinishReason
from eyas.gateway.anthropic.events import Blocks, fold, input_of, stop_of
from eyas.gateway.turn.delta import Delta, Kind, Piece

FUNCTIONS = frozenset({"get_weather"})


def plain(blocks) -> list[dict]:
    """Return blocks without their ids."""
    return [{name: value for name, value in block.items() if name != "id"} for block in msgspec.to_builtins(blocks)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 12), max_size=30))
def test_no_chunking_changes_the_blocks(codec, seed, sizes):
    ids = spoken(codec, *Histories(seed).answer())
    found = []
    for cut in (sizes, [], [1] * len(ids)):
        blocks = Blocks()
        deltas = read(codec, ids, cut, with_logprobs=False, functions=FUNCTIONS)
        events = [event for delta in deltas for event in blocks.add(delta)]
        sent = blocks_of(msgspec.to_builtins(events))
        whole = plain(fold(events))
        assert plain(sent) == whole
        assert blocks.has_call == any(block["type"] == "tool_use" for block in whole)
        found.append(whole)
    assert found[0] == found[1] == found[2]


def test_a_message_that_goes_on_is_one_block():
    blocks = Blocks()
    first = blocks.add(Delta(choice=0, pieces=(Piece(message=0, kind=Kind.CONTENT, text="a"),)))
    assert not blocks.add(Delta(choice=0)) and not blocks.add(
        Delta(choice=0, pieces=(Piece(message=1, kind=Kind.CONTENT, text=""),))
    )
    second = blocks.add(Delta(choice=0, pieces=(Piece(message=0, kind=Kind.CONTENT, text="b"),)))
    last = blocks.add(Delta(choice=0, finish=FinishReason.STOP))
    assert [len(one) for one in (first, second, last)] == [2, 1, 1]
    assert plain(fold([*first, *second, *last])) == [{"type": "text", "text": "ab"}]


@pytest.mark.parametrize("text", ["[1]", '"x"', "{", "nul", '{"a": 1} x', '{"a": \ud800}', "[" * 5000, "1"])
def test_input_that_is_no_object_comes_as_it_is(text):
    assert input_of(text) == unparsed(text)


@pytest.mark.parametrize("text", ["", " \n", "{}", " {} "])
def test_no_input_is_an_empty_object(text):
    assert input_of(text) == {}


def test_an_end_without_totals_is_that_of_the_context():
    assert stop_of(Delta(choice=0, finish=FinishReason.LENGTH), has_call=True, max_tokens=5) == (
        "model_context_window_exceeded",
        None,
    )
