"""The same ground for every test: one thread for tensors, and Ctrl-C for the processes that tests start."""

import signal

import torch

torch.set_num_threads(1)  # the test models are tiny, and spinning threads fight over few cores
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job and in its children
