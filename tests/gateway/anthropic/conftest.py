"""The official client of the Anthropic API, and a server with a long context and a script of its answers."""

from collections.abc import Callable, Iterator

import pytest
from tests.gateway.conftest import stub_server
from tests.gateway.support.gateway import Server
from tests.gateway.support.responses import Script

from eyas.base.tokens.tokenizer import Tokenizer


@pytest.fixture
def sdk() -> Callable:
    """Return a client of a server that tries once."""
    import anthropic  # takes more than a second

    return lambda server, **options: anthropic.Anthropic(
        **{"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": 20} | options
    )


@pytest.fixture(scope="module")
def scripted(codec: Tokenizer) -> Iterator[tuple[Server, Script]]:
    """A server and the script of its answers."""
    script = Script()
    with stub_server(codec, script, context=20_000) as server:
        yield server, script
