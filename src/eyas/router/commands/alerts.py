"""`eyas router alerts`: prints alerting rules for Prometheus."""

from __future__ import annotations

import argparse

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the rules are the same for every router."""


def run(args: argparse.Namespace) -> int:
    from eyas.router.operation.alerts import rules

    print(rules(), end="")
    return 0
