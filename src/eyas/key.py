"""`eyas key`: makes a new API key and the digest that a server is given."""

from __future__ import annotations

import argparse
import hashlib
import secrets

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no flags: every key is made of 256 random bits."""


def run(args: argparse.Namespace) -> int:
    key = f"eyas-{secrets.token_urlsafe(32)}"
    print(f"key     {key}    (for the client; it is not stored anywhere)")
    print(f"server  --api-key sha256:{hashlib.sha256(key.encode()).hexdigest()}")
    return 0
