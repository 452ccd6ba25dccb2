"""The operations as protocols, and each of them in plain PyTorch."""
