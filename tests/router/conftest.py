"""Fleet's lab: plans of a fake engine, and nothing that they started may outlive a test."""

from tests.fleet.conftest import lab

__all__ = ["lab"]
