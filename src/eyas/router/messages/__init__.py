"""Anthropic's Messages API in front of backends that have a chat endpoint only."""
