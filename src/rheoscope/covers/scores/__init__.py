"""The analysis `scores`: its computation, its picture and its words."""
