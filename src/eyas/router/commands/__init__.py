"""The commands `eyas router` and `eyas router alerts`."""
