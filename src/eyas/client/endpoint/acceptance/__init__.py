"""Acceptance of every engine, from whatever it offers, under one definition: for `eyas ps` and the benchmark."""
