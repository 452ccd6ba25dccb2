"""Keeps deployments up: scripts, policy, state, supervisor."""
