"""The vocabularies of the Harmony tests, and the demo model's."""

import pytest
from tests.base.conftest import harmony, o200k, o200k_pattern, ranks  # noqa: F401 - fixtures

from eyas.base.bundled import DEMO
from eyas.base.tokens.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def demo():
    return Tokenizer.load(DEMO)
