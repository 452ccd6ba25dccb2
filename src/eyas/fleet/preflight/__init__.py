"""Checks before a plan is started."""
