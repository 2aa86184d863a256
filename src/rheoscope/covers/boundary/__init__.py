"""The analysis `boundary`: its computation, its picture and its words."""
