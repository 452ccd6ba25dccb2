"""Tuning advice for a server that runs, each piece of it shown with what was seen."""
