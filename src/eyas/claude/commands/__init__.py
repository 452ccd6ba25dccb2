"""The commands of `eyas claude`: arguments and printing."""
