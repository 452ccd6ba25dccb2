"""Settings go into any document and out of it again, whatever else is edited in between."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.claude.support.documents import OURS, PATHS, VALUES, added, members, pairs, removed, replaced, texts

from eyas.base.errors import UserError
from eyas.claude.json_text import check, find, find_container
from eyas.claude.merge import undo, write


def merged(content, ours):
    """What a merge means, on values."""
    if isinstance(ours, dict):
        return content | {key: merged(content.get(key, type(value)()), value) for key, value in ours.items()}
    return content + [one for one in ours if one not in content] if isinstance(ours, list) else ours


@given(texts())
def test_written_and_undone(text):
    written, changes = write(text, OURS)
    assert json.loads(written) == merged(json.loads(text), OURS)
    keys = list(json.loads(text))
    assert list(json.loads(written))[: len(keys)] == keys
    assert undo(written, changes) == undo(text, changes) == (text, [])
    assert write(written, OURS) == (written, [])


@settings(max_examples=50)
@given(texts())
def test_what_is_there_keeps_its_characters(text):
    written, _ = write(text, OURS)
    for path in members(text):
        before, after = find(text, path), find(written, path)
        assert text[before.start : before.end] == written[after.start : after.end]
    for path in {(), *(path[:-1] for path in members(text))}:
        before, after = find_container(text, path), find_container(written, path)
        assert [item.key for item in after.items][: len(before.items)] == [item.key for item in before.items]


@given(st.data(), texts())
def test_edits_of_other_keys_in_between_stay(data, text):
    written, changes = write(text, OURS)
    is_removed = False
    for _ in range(data.draw(st.integers(1, 3))):
        others = list(members(text))
        if not others:
            break
        path = data.draw(st.sampled_from(others))
        edit = data.draw(st.sampled_from([replaced, added, removed]))
        if edit is added and find(text, (*path[:-1], "new")):
            continue
        values = () if edit is removed else (data.draw(VALUES),)
        text, written = edit(text, path, *values), edit(written, path, *values)
        is_removed |= edit is removed
    back, kept = undo(written, changes)
    assert kept == [] and pairs(back) == pairs(text)
    assert back == text or is_removed  # which leaves blanks of the one or of the other


@settings(max_examples=50)
@given(texts(), st.booleans())
def test_a_program_that_sets_the_file_afresh(text, is_sorted):
    """As the client does when it saves a choice, in an order of its own."""
    written, changes = write(text, OURS)
    back, kept = undo(json.dumps(json.loads(written), indent=2, sort_keys=is_sorted), changes)
    assert kept == [] and json.loads(back) == json.loads(text)
    assert pairs(back) == pairs(json.dumps(json.loads(text), sort_keys=is_sorted))


@settings(max_examples=50)
@given(st.data(), texts())
def test_values_of_ours_that_were_changed_stay_and_are_named(data, text):
    written, changes = write(text, OURS)
    path = data.draw(st.sampled_from([path for path in PATHS if path[-1] != "deny"]))
    edited = replaced(written, path, "another")
    back, kept = undo(edited, changes)
    is_ours = any(change.path == path for change in changes)
    assert kept == ([".".join(path)] if is_ours else [])
    assert json.loads(back[find(back, path).value : find(back, path).end]) == "another"
    rest = undo(written, [change for change in changes if change.path != path])[0]
    assert json.loads(back) == json.loads(replaced(rest, path, "another"))


@settings(max_examples=50)
@given(st.data(), texts())
def test_values_of_ours_that_were_removed_stay_removed(data, text):
    written, changes = write(text, OURS)
    path = data.draw(st.sampled_from(PATHS))
    back, kept = undo(removed(written, path), changes)
    is_replaced = any(change.path == path and change.kind == "replaced" for change in changes)
    assert kept == ([".".join(path)] if is_replaced else [])
    assert (find(back, path) is None) or path[-1] == "deny"


@settings(max_examples=50)
@given(texts(), texts())
def test_another_document_in_its_place(text, other):
    """Nothing that is there is lost but what equals ours."""
    _, changes = write(text, OURS)
    back, _ = undo(other, changes)
    check(back)
    assert [path for path in members(other) if find(back, path) is None] == []


def test_neither_container_nor_former_text_is_left():
    text = '{\r\n\t"a": [1]\r\n}'
    written, changes = write(text, {"env": {"A": "1"}, "permissions": {"deny": ["X", "Y"]}})
    assert written == (
        '{\r\n\t"a": [1],\r\n\t"env": {\r\n\t\t"A": "1"\r\n\t},\r\n\t"permissions": {\r\n\t\t"deny": [\r\n\t\t\t"X",'
        '\r\n\t\t\t"Y"\r\n\t\t]\r\n\t}\r\n}'
    )
    mine = written.replace('"A": "1"', '"A": "1",\r\n\t\t"B": "2"')
    assert undo(mine, changes) == ('{\r\n\t"a": [1],\r\n\t"env": {\r\n\t\t"B": "2"\r\n\t}\r\n}', [])
    assert undo(text, changes) == (text, [])


def test_lists_keep_what_others_put_there():
    ours = {"permissions": {"deny": ["WebSearch"]}}
    for before, mine in (
        ('{"permissions": {"deny": ["X"]}}', '{"permissions": {"deny": ["X", "Y"]}}'),
        ('{"permissions": {"deny": ["WebSearch"]}}', '{"permissions": {"deny": ["WebSearch", "Y"]}}'),
        ('{"a": 1}', '{"a": 1, "permissions": {"deny": ["Y"]}}'),
    ):
        written, changes = write(before, ours)
        assert undo(written.replace('"WebSearch"', '"WebSearch", "Y"'), changes) == (mine, [])
        assert undo(written, changes) == (before, [])


def test_on_one_line():
    assert write('{"a":1}', {"b": "c"})[0] == '{"a":1,"b":"c"}'
    assert write('{"a": {}}', {"a": {"b": "c", "d": "e"}})[0] == '{"a": {"b": "c", "d": "e"}}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is no JSON"),
        (" \n", "it is no JSON"),
        ("{", "it is no JSON"),
        ('{"a": 1,}', "it is no JSON"),
        ('{"a": 1} x', "it is no JSON"),
        ('{"a": NaN}', "it is no JSON"),
        ('{"a": "\n"}', "it is no JSON"),
        ("// mine\n{}", "it is no JSON"),
        ("\ufeff{}", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("[]", "no object"),
        ("null", "no object"),
        ('{"a": 1, "\\u0061": 2}', "names the key 'a' twice"),
        ('{"x": [{"b": 1, "b": 1}]}', "names the key 'b' twice"),
    ],
)
def test_what_is_refused(text, words):
    for act in (lambda: write(text, OURS), lambda: undo(text, [])):
        with pytest.raises(UserError) as caught:
            act()
        assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"env": null}', r"its 'env' is no object"),
        ('{"permissions": []}', r"its 'permissions' is no object"),
        ('{"permissions": {"deny": "x"}}', r"its 'permissions\.deny' is no list"),
    ],
)
def test_something_else_in_the_place_of_a_container(text, words):
    with pytest.raises(UserError, match=words):
        write(text, OURS)
