"""Estimates of bytes and seconds."""
