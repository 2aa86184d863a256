"""The analysis `trajectory`: its computation, its picture and its words."""
