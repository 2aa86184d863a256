"""The analysis `charts`: its computation, its picture and its words."""
