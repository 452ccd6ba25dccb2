"""The step loop: schedule, run, read results."""
