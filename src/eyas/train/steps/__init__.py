"""Steps of training: states, losses and gradients of some batches, one update, over one or several processes."""
