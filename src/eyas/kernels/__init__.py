"""Functions that run on the device, one operation a file, each with a plain PyTorch twin. Imports no other package."""
