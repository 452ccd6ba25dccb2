"""Draft length: statistics and choices in plain numbers, without torch."""
