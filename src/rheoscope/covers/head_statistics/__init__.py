"""The analysis `head_statistics`: its computation, its picture and its words."""
