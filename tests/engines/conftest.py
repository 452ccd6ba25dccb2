"""Every test here needs `make test-engines`: a llama-server built from source, parsers of published packages."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOOL = HERE.parents[1] / "tools" / "llama_server.py"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.engines)


@pytest.fixture(scope="session")
def llama_tool():
    """The module tools/llama_server.py."""
    spec = importlib.util.spec_from_file_location("llama_server", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def llama_server(llama_tool):
    """The path of llama-server, built by `make test-engines` or named by EYAS_LLAMA_SERVER."""
    server = llama_tool.binary()
    assert server.is_file(), f"{server} is not there; build it: python tools/llama_server.py"
    return server
