"""The file is read again when its content changes; a wrong one is named once and leaves the settings."""

import os

import pytest

from eyas.base.errors import UserError
from eyas.discord.settings.watch import SettingsFile

GOOD = "endpoint: {base_url: http://127.0.0.1:8100}\n"


class File:
    """A file whose time of change stands still unless a test moves it: the tick of a coarse file system."""

    def __init__(self, path):
        self.path = path
        self.now = 1_000_000.0
        self.write(GOOD)

    def write(self, text):
        self.path.write_text(text)
        os.utime(self.path, (self.now, self.now))


@pytest.fixture
def file(tmp_path):
    return File(tmp_path / "bot.yaml")


@pytest.fixture
def watched(file):
    return SettingsFile(file.path, {}, wall_time=lambda: file.now)


def test_a_valid_change_holds_at_once_and_names_what_changed(file, watched):
    assert watched.reload() is None
    file.now += 60
    file.write(GOOD + "limits: {answers_at_once: 1}\nmetrics: {port: 9100}\n")
    found = watched.reload()
    assert found.problem is None and found.settings is watched.settings
    assert found.settings.limits.answers_at_once == 1
    assert (found.changed, found.waits) == (("limits", "metrics"), ("metrics",))
    assert watched.reload() is None


def test_an_invalid_change_is_named_once_and_changes_nothing(file, watched):
    before = watched.settings
    file.now += 60
    file.write("endpoint: {base_url: 5}\nlimitz: 3\n")
    found = watched.reload()
    assert "endpoint.base_url" in found.problem and "limitz: unknown key" in found.problem
    assert found.settings is watched.settings is before and not found.changed
    assert watched.reload() is None
    file.now += 60
    file.path.touch()
    assert watched.reload() is None
    file.write(GOOD + "memory: {messages: 3}\n")
    assert watched.reload().settings.memory.messages == 3


def test_a_change_within_the_tick_of_the_time_and_of_the_same_size_is_seen(file, watched):
    file.write(GOOD.replace("8100", "8200"))
    assert watched.reload().settings.endpoint.base_url == "http://127.0.0.1:8200"


def test_an_old_file_is_not_read_again(file, watched, monkeypatch):
    file.now += 60
    assert watched.reload() is None
    monkeypatch.setattr(SettingsFile, "_read_digest", lambda self: pytest.fail("the file was read"))
    assert watched.reload() is None


def test_other_bytes_of_the_same_settings_change_nothing(file, watched):
    file.now += 60
    file.write(GOOD + "# a comment\n")
    found = watched.reload()
    assert found.problem is None and not found.changed


def test_a_file_that_is_away_for_a_moment_is_waited_for(file, watched):
    before = watched.settings
    file.path.unlink()
    assert watched.reload() is None and watched.settings is before
    file.now += 60
    file.write(GOOD + "memory: {messages: 3}\n")
    assert watched.reload().changed == ("memory",)


def test_the_first_file_must_be_valid(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*; examples/discord/bot\.yaml shows one"):
        SettingsFile(tmp_path / "none.yaml", {})
