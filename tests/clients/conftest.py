"""Every test here needs `make test-clients`: the real Claude Code from npm, against a real engine."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.clients.support.box import Box, make_model, serving
from tests.clients.support.client import Client, installed

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.clients)


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="session")
def program() -> Path:
    return installed()


@pytest.fixture(scope="module")
def box(model) -> Iterator[Box]:
    """One server for the tests of a module. Its cache is filled by those before; each test has markers of its own."""
    with serving(model) as box:
        yield box


@pytest.fixture
def new_client(program, tmp_path) -> Callable[..., Client]:
    """Return a function that makes a client with a fresh home and project folder."""
    return lambda name="one": Client(program, tmp_path / name)
