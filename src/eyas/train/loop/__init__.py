"""The training loop: steps, optimiser, checkpoints, progress."""
