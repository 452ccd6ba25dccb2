"""The Anthropic API as this server speaks it: messages, streamed and whole, and counting their tokens."""
