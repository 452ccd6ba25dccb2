"""A settings file on disk gets settings and loses them again: its bytes, its mode, links, and what goes wrong."""

import json
import os
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from tests.claude.support.documents import OURS, texts

from eyas.base.errors import UserError
from eyas.claude import settings_file
from eyas.claude.settings_file import SettingsFile

TEXT = b'{\r\n\t"model": "\xc3\xa4",\r\n\t"env": {"A": "mine", "B": "b"}}'


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "claude" / "settings.json"
    path.parent.mkdir()
    path.write_bytes(TEXT)
    return path


@pytest.fixture
def file(path, tmp_path):
    return SettingsFile(path, tmp_path)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts())
def test_any_file_comes_back_byte_for_byte(file, path, text):
    path.write_bytes(text.encode())
    file.write(OURS)
    assert json.loads(path.read_bytes())["env"]["ANTHROPIC_MODEL"] == "claude-x"
    assert file.undo() == []
    assert path.read_bytes() == text.encode()


def test_mode_and_neighbours(file, path, tmp_path):
    path.chmod(0o640)
    file.write(OURS)
    assert mode(path) == 0o640
    record = next((tmp_path / "claude").glob("[0-9a-f]*.json"))
    assert mode(record) == 0o600
    assert files(tmp_path) == sorted([f"claude/{record.name}", "claude/settings.json"])
    file.undo()
    assert mode(path) == 0o640 and files(tmp_path) == ["claude/settings.json"]


def test_a_link_stays_one(file, path, tmp_path):
    link = tmp_path / "link.json"
    link.symlink_to("claude/settings.json")
    SettingsFile(link, tmp_path).write(OURS)
    assert link.is_symlink() and b"claude-x" in path.read_bytes()
    assert file.undo() == []  # by the other name
    assert link.is_symlink() and path.read_bytes() == TEXT


def test_a_link_that_leads_nowhere(tmp_path):
    link, target = tmp_path / "link.json", tmp_path / "target.json"
    link.symlink_to(target)
    file = SettingsFile(link, tmp_path)
    file.write(OURS)
    assert link.is_symlink() and json.loads(target.read_bytes()) == OURS
    file.undo()
    assert link.is_symlink() and not target.exists()


def test_a_new_file_goes_again(tmp_path):
    path = tmp_path / "new" / "settings.json"
    file = SettingsFile(path, tmp_path)
    file.write(OURS)
    assert mode(path) == 0o600 and mode(path.parent) == 0o700
    assert json.loads(path.read_bytes()) == OURS and path.read_bytes().endswith(b"}\n")
    file.undo()
    assert not path.parent.exists()


def test_a_new_file_stays_with_what_others_put_there(tmp_path):
    path = tmp_path / "new" / "settings.json"
    file = SettingsFile(path, tmp_path)
    file.write(OURS)
    path.write_bytes(path.read_bytes().replace(b'"deny"', b'"allow": ["x"],\n    "deny"'))
    file.undo()
    assert json.loads(path.read_bytes()) == {"permissions": {"allow": ["x"]}}
    file.write(OURS)
    path.unlink()
    (path.parent / "other").touch()
    assert file.undo() == [] and files(path.parent) == ["other"]


def test_written_twice_and_undone_once(file, path):
    file.write(OURS)
    file.write({**OURS, "env": {"A": "second", "C": "c"}})
    assert json.loads(path.read_bytes())["env"] == {"A": "second", "B": "b", "C": "c"}
    assert file.undo() == [] and path.read_bytes() == TEXT
    with pytest.raises(UserError, match=rf"nothing to undo: eyas has written nothing into {path}"):
        file.undo()


def test_what_the_person_changed_in_between_is_theirs_also_after_a_second_write(file, path):
    file.write(OURS)
    path.write_bytes(path.read_bytes().replace(b'"A": ""', b'"A": "mine now"'))
    file.write({"env": {"A": "second"}})
    assert file.undo() == []
    assert path.read_bytes() == TEXT.replace(b'"mine"', b'"mine now"')


def test_changed_values_are_named(file, path):
    file.write(OURS)
    path.write_bytes(path.read_bytes().replace(b'"default"', b'"plan"').replace(b'"claude-x"', b'"y"'))
    assert file.undo() == ["env.ANTHROPIC_MODEL", "permissions.defaultMode"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"// mine\n{}", b'{"a": "\xff"}', b"[]", b'{"a":1,"a":2}', b'{"env": 3}']
)
def test_what_cannot_be_merged_is_left_alone(file, path, tmp_path, content):
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^{path} is left alone: it") as caught:
        file.write(OURS)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == content and files(tmp_path) == ["claude/settings.json"]


@pytest.mark.parametrize("content", [b"{", b'{"a": "\xff"}', b'{"a":1,"a":2}'])
def test_neither_is_it_undone(file, path, content):
    file.write(OURS)
    written = path.read_bytes()
    path.write_bytes(content)
    for act in (file.undo, lambda: file.write(OURS)):
        with pytest.raises(UserError, match=r"is left alone: it"):
            act()
        assert path.read_bytes() == content
    path.write_bytes(written)
    assert file.undo() == [] and path.read_bytes() == TEXT


@pytest.mark.parametrize("is_second", [False, True])
def test_a_disk_that_is_full(file, path, tmp_path, monkeypatch, is_second):
    if is_second:
        file.write(OURS)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"cannot write .*: No space left on device"):
            file.write({"env": {"A": "second"}})
    assert path.read_bytes() == before and not list(tmp_path.rglob(".*"))


@pytest.mark.parametrize("is_second", [False, True])
def test_killed_between_the_record_and_the_file(file, path, monkeypatch, is_second):
    if is_second:
        file.write({"env": {"A": "first"}})
    replace = settings_file._replace

    def killed(target, content):
        if target == path and b"claude-x" in content:
            raise KeyboardInterrupt
        replace(target, content)

    with monkeypatch.context() as patch:
        patch.setattr(settings_file, "_replace", killed)
        with pytest.raises(KeyboardInterrupt):
            file.write(OURS)
    assert file.undo() == [] and path.read_bytes() == TEXT


def test_places_that_cannot_be_used(file, path, tmp_path):
    with pytest.raises(UserError, match=r"cannot make .*No such file or directory"):
        SettingsFile(tmp_path / "a" / "b" / "settings.json", tmp_path).write(OURS)
    with pytest.raises(UserError, match=r"cannot read .*Is a directory"):
        SettingsFile(path.parent, tmp_path).write(OURS)
    (tmp_path / "x").symlink_to("y")
    (tmp_path / "y").symlink_to("x")
    with pytest.raises(UserError, match="loop"):
        SettingsFile(tmp_path / "x", tmp_path).write(OURS)


@pytest.mark.parametrize("content", [b"{", b"{}", b"[]", b'{"is_new": false, "has_new_folder": false, "changes": [1]}'])
def test_a_record_that_cannot_be_read(file, path, tmp_path, content):
    file.write(OURS)
    written = path.read_bytes()
    next((tmp_path / "claude").glob("[0-9a-f]*.json")).write_bytes(content)
    for act in (file.undo, lambda: file.write(OURS)):
        with pytest.raises(UserError, match=r"cannot be read; it says what to undo in "):
            act()
    assert path.read_bytes() == written
