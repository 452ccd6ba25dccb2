"""Where eyas keeps what outlives its processes."""

from pathlib import Path

import pytest

from eyas.base.errors import UserError
from eyas.base.settings.home import home


def test_the_folder_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert home({}) == tmp_path / ".local" / "share" / "eyas"
    assert home({"XDG_DATA_HOME": str(tmp_path / "data")}) == tmp_path / "data" / "eyas"
    folder = home({"XDG_DATA_HOME": "/nowhere", "EYAS_HOME": str(tmp_path / "own" / "folder")})
    assert folder == tmp_path / "own" / "folder" and folder.is_dir()
    assert folder.stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot make .*; set EYAS_HOME to a folder of yours"):
        home({"EYAS_HOME": str(tmp_path / "file" / "x")})
