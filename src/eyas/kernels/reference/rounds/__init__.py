"""Operations around a pass in plain PyTorch: which rows it has, which tokens come of its logits, which are kept."""
