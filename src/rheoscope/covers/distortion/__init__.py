"""The analysis `distortion`: its computation, its picture and its words."""
