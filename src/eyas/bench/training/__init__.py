"""Speed and memory of training steps."""
