"""Advice from measurements: starts engines, measures them under load, says which to take and with how many drafts."""
