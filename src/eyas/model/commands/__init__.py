"""`eyas model` and `eyas export`."""
