"""Kernels of our own for a CUDA device, one file each, in Triton; `offer` says which mechanism runs on which."""
