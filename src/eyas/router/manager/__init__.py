"""Decisions on requests: which backend gets which, in what order, and what happens when one fails."""
