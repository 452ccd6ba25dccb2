"""Connections that are closed when a test ends."""

from contextlib import ExitStack, closing

import pytest
from tests.gateway.support.operation import Raw


@pytest.fixture
def connect():
    """`connect(server)` is a Raw connection."""
    with ExitStack() as stack:

        def connect(server) -> Raw:
            raw = Raw(server)
            stack.enter_context(closing(raw.socket))
            return raw

        yield connect
