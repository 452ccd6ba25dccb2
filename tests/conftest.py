"""One thread for tensors: the test models are tiny, and spinning threads fight over few cores."""

import torch

torch.set_num_threads(1)
