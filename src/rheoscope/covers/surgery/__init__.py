"""The analysis `surgery`: its computation, its picture and its words."""
