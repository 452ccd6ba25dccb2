"""Connections to backends."""
