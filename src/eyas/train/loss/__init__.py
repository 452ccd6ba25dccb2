"""Losses over tiles of target positions: no tensor of logits for a whole sequence."""
