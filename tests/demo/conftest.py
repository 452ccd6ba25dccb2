"""The bundled model, loaded once."""

import pytest

from eyas.llm import LLM


@pytest.fixture(scope="session")
def llm():
    return LLM("demo", context=1024, seed=0)
