"""Checks grammars and schemas before the engine sees them."""
