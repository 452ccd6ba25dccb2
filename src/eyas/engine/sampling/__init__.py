"""From logits to committed tokens."""
