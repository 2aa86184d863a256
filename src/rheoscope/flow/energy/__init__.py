"""The analysis `energy`: its computation, its picture and its words."""
