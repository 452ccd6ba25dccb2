"""The official client of the Anthropic API, for any server."""

from collections.abc import Callable

import anthropic
import pytest


@pytest.fixture
def sdk() -> Callable[..., anthropic.Anthropic]:
    """Return a client of a server that tries once."""
    return lambda server, **options: anthropic.Anthropic(
        **{"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 20} | options
    )
