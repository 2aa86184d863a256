"""Lowerings: the implementations of a mechanism. Each equals the reference, and `choice.py` selects one."""
