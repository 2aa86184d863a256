"""The analysis `massive_tokens`: its computation and its picture."""
