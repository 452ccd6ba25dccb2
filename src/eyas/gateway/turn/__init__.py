"""One assistant turn: from the engine's events to deltas of reasoning, content and calls. Knows no dialect."""
