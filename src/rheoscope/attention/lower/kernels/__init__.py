"""Triton kernels for CUDA devices, one mechanism per file; `triton_lowerings.py` assigns mechanisms to kernels."""
