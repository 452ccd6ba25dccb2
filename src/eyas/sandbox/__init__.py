"""Runs Python programs that a model wrote, where they can harm nothing: no network, no files, limits on everything."""
