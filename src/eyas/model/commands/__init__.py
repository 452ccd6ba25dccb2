"""`eyas models info`, `eyas models make` and `eyas export`."""
