"""Training of draft heads. Never imports the engine."""
