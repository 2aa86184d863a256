"""The analysis `head_statistics`: its computation."""
