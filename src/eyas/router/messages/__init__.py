"""Anthropic's messages in front of backends that have an OpenAI chat endpoint only."""
