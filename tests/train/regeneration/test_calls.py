"""A recorded tool result is used for a call with the same name and arguments, as JSON values, and for no other."""

import json

from hypothesis import given
from hypothesis import strategies as st

from eyas.train.regeneration.calls import Call, RecordedCall, Recording, same_json

LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "1"]) | st.floats(-2, 2, width=16)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner), max_leaves=8
)


def canonical(value):
    """Numbers as floats, keys in order: equal as texts if and only if equal as JSON values."""
    if isinstance(value, dict):
        return {key: canonical(item) for key, item in value.items()}
    if isinstance(value, list):
        return [canonical(item) for item in value]
    return float(value) + 0.0 if isinstance(value, int | float) and not isinstance(value, bool) else value


@given(VALUES, VALUES)
def test_values_are_the_same_if_their_canonical_texts_are(one, other):
    texts = [json.dumps(canonical(value), sort_keys=True) for value in (one, other)]
    assert same_json(one, other) == (texts[0] == texts[1])
    assert same_json(one, json.loads(json.dumps(one)))


def recorded(*calls):
    return [
        RecordedCall(call=Call(id=None, name=name, arguments=arguments), result=result)
        for name, arguments, result in calls
    ]


def call(name, arguments):
    return Call(id="x", name=name, arguments=arguments)


def test_arguments_are_values_not_texts():
    for ours, theirs, is_same in (
        ('{"a": 1, "b": [2]}', '{"b":[2],"a":1.0}', True),
        ('{"a": 1}', {"a": 1}, True),
        ("", "{}", True),
        ("no json", "no json", True),
        ("no json", "no  json", False),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ('{"a": 1}', '{"a": 1, "b": null}', False),
        ("[" * 100_000, "[" * 100_001, False),
    ):
        found = Recording([recorded(("f", theirs, "r"))]).results([call("f", ours)])
        assert found == (["r"] if is_same else None), (ours, theirs)
    assert Recording([recorded(("f", "{}", "r"))]).results([call("g", "{}")]) is None


def test_a_result_is_used_once_and_in_the_order_of_groups():
    groups = [recorded(("f", "1", "one"), ("f", "2", "two"), ("f", "1", "three")), recorded(("g", "", "four"))]
    recording = Recording(groups)
    assert recording.results([call("g", "")]) is None, "the second group was recorded after the first"
    assert recording.results([call("f", "2"), call("f", "3")]) is None, "all calls of an answer must match"
    assert recording.results([call("f", "2")]) == ["two"]
    assert recording.results([call("f", "2")]) is None
    assert recording.results([call("f", "1"), call("f", "1")]) == ["one", "three"]
    assert recording.results([call("g", "{}")]) == ["four"]
    assert recording.results([call("g", "{}")]) is None
    assert Recording([recorded(("f", "", None))]).results([call("f", "")]) is None
