"""Dense products in CUDA C++: QKV, attention's output, lm_head, a head's matrices."""
