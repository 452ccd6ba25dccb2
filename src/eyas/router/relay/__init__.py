"""Relaying: requests to backends and their answers back to clients, unchanged."""
