"""The analysis `stack`: its computation, its picture and its words."""
