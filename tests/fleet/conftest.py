"""One lab for each test, and nothing that it started may outlive it."""

import shutil
import tempfile

import pytest
from tests.fleet.support.lab import Lab


@pytest.fixture
def lab(tmp_path, monkeypatch):
    runtime = tempfile.mkdtemp(prefix="eyas-")  # sockets want a short path
    lab = Lab(tmp_path, runtime)
    for name, value in lab.environ.items():
        monkeypatch.setenv(name, value)
    yield lab
    left = lab.clean_up()
    shutil.rmtree(runtime)
    assert not left, left
