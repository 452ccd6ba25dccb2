"""Routes: prompts by kind, each with its effort, its limit and, if wanted, its model."""
