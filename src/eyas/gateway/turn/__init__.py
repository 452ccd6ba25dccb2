"""Converts engine events of one assistant turn to deltas of reasoning, content and calls, without any dialect."""
