"""Escapes, each by its name: none works, and each is a clear result. Bubblewrap and variants are slow ones."""

import asyncio
import os

import pytest
from tests.sandbox.support.escapes import ESCAPES, VARIANTS, X86_ONLY
from tests.sandbox.support.outside import SECRET, left_behind, marked

from eyas.sandbox.sandbox import Sandbox
from eyas.sandbox.ways import BUBBLEWRAP, NAMESPACES

NAMES = [name for name in ESCAPES if name not in X86_ONLY or os.uname().machine == "x86_64"]
SLOW = [pytest.mark.slow]
CASES = [
    *(pytest.param(NAMESPACES, name, marks=SLOW if name in VARIANTS else []) for name in NAMES),
    *(pytest.param(BUBBLEWRAP, name, marks=SLOW) for name in NAMES),
]


def test_variants_are_of_what_is_there():
    assert set(ESCAPES) >= VARIANTS and len(set(NAMES) - VARIANTS) > 40


@pytest.mark.parametrize(("way", "name"), CASES)
def test_no_escape_works(ways, outside, monkeypatch, way, name):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    tried = ESCAPES[name]
    code = tried.code.format(**outside) if "{" in tried.code else tried.code
    outcome = asyncio.run(Sandbox(ways(way), way, tried.limit()).run(marked(code)))
    assert not tried.has_worked(outcome.output, outcome.text), outcome
    assert SECRET not in outcome.text and "API_KEY" not in outcome.text
    assert not os.path.lexists(outside["trace"])
    assert not left_behind()
