"""Backends: starting those that are plans, and watching all of them."""
