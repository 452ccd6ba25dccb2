"""Layouts of weights in device memory: blocked matrices, repacked MXFP4, FP8, and limits of the device."""
