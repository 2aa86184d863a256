"""Triton kernels for distance matrices on a CUDA device."""
