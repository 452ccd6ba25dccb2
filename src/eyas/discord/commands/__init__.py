"""The command `eyas discord`."""
