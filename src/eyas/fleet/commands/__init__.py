"""The commands of the fleet: arguments and printing."""
