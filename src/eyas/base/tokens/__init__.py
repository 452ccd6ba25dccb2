"""Text to token ids and back, in pieces that bound memory."""
