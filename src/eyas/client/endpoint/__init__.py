"""Asking a running server whether it is well: canary requests and metrics."""
