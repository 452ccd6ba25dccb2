"""One file an engine: from a choice to the exact command, environment and files. Pure."""
