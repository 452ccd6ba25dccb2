"""Every test here needs `make test-engines`: a llama-server built from source, parsers of published packages."""

from pathlib import Path

import pytest

from tools import llama_server as tool

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.engines)


@pytest.fixture(scope="session")
def llama_server():
    """The path of llama-server, built by `make test-engines` or named by EYAS_LLAMA_SERVER."""
    server = tool.binary()
    assert server.is_file(), f"{server} is not there; build it: python tools/llama_server.py"
    return server
