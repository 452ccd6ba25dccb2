"""How many tokens to draft: statistics and choices in plain numbers, no torch."""
