"""Triton kernels of training: attention of a head's rows, tiles of its loss, norms and SwiGLU. Forward and backward."""
