"""Asking a running server: canary requests and metrics."""
