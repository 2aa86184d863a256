"""The analysis `decay`: its computation, its picture and its words."""
