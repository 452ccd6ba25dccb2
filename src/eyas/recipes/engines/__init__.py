"""Engines, one file each: from a choice to the exact command, environment and files. Pure."""
