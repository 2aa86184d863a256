"""The analysis `patch`: its computation, its picture and its words."""
