"""The commands of `eyas train`: arguments and printing."""
