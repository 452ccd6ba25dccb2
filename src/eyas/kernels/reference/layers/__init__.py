"""Operations of a network's layers in plain PyTorch: what they compute, and in which order."""
