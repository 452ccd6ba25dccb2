"""Where things stand in a JSON text."""

import json

from hypothesis import given, settings
from tests.claude.support.documents import texts

from eyas.claude.json_text import Container, Item, check, find, find_container


@settings(max_examples=50)
@given(texts())
def test_every_member_is_found_where_it_stands(text):
    check(text)
    waiting = [((), json.loads(text))]
    while waiting:
        path, value = waiting.pop()
        found = find_container(text, path)
        assert found.is_object and text[found.start] + text[found.end] == "{}"
        assert [item.key for item in found.items] == list(value)
        for item in found.items:
            here = (*path, item.key)
            assert find(text, here) == item
            assert json.loads(text[item.value : item.end]) == value[item.key]
            assert (
                text[item.start : item.value] == json.dumps(item.key) + item.colon or "\\" in text or not text.isascii()
            )
            if isinstance(value[item.key], dict):
                waiting.append((here, value[item.key]))


def test_positions():
    text = ' {"a" : [1, {"b":"]"} ] }'
    assert find_container(text, ("a",)) == Container(
        is_object=False,
        start=8,
        end=22,
        items=(
            Item(key=None, start=9, colon="", value=9, end=10),
            Item(key=None, start=12, colon="", value=12, end=21),
        ),
    )
    assert find(text, ("a",)) == Item(key="a", start=2, colon=" : ", value=8, end=23)


def test_what_is_not_there():
    text = '{"a": {"b": 1}, "c": [{"d": 2}], "e": "{"}'
    for path in [("x",), ("a", "x"), ("a", "b", "x"), ("c", "d"), ("e", "x"), ("x", "y", "z")]:
        assert find(text, path) is None and find_container(text, path) is None
    assert find_container(text, ("a", "b")) is None
