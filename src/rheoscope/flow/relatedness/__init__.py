"""The analysis `relatedness`: its computation, its picture and its words."""
