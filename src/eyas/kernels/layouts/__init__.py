"""How weights lie in device memory: blocked matrices, repacked MXFP4, FP8, and the device that reads them."""
