"""The analysis `heat`: its computation, its picture and its words."""
