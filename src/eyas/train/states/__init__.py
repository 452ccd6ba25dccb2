"""Sources of the target's hidden states: the model in this process, or a folder that holds them."""
