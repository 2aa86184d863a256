"""The analysis `agreement`: its computation, its picture and its messages."""
