"""Files of models on a machine: cache and downloads."""
