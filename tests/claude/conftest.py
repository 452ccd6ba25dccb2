"""A server of a test's own, and a home where nothing of the person's is."""

from pathlib import Path

import pytest
from tests.claude.support.stand_in_server import stand_in


@pytest.fixture
def server():
    with stand_in() as server:
        yield server


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr(Path, "home", lambda: folder)
    for name in ("EYAS_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return folder
