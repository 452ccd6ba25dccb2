"""A fleet of a test's own for sweeps."""

from tests.fleet.conftest import lab

__all__ = ["lab"]
