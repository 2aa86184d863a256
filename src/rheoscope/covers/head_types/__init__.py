"""The analysis `head_types`: its computation, its picture and its words."""
