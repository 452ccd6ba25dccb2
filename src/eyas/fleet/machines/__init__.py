"""Asking one machine what it is and what runs on it."""
