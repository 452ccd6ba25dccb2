"""Prompts for endpoints: sets of our own, files, data sets of the hub, random token ids."""
