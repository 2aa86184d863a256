"""Triton kernels for the analyses of `flow`, imported where they are used."""
