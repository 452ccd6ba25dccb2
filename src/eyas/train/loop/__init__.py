"""A run from its settings to its end: what it is made of, what it needs, its steps and evaluations."""
