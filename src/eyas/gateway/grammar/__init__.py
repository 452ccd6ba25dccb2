"""Builds grammars for answers, and checks grammars and schemas before the engine compiles them."""
