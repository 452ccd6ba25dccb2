"""Settings of eyas: their values, and the files and folders that they come from."""
