"""Kernels of our own for tables of distances on a CUDA device, in Triton."""
