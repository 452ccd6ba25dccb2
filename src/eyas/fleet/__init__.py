"""Runs plans: processes and containers here or over ssh, their health, logs, memory and state."""
