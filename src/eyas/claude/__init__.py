"""Claude Code on a server of our own: its settings, and starting it."""
