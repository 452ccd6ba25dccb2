"""Training of draft heads, without the engine."""
