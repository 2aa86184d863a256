"""The analysis `frames`: its computation, its picture and its words."""
