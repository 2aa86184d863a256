"""The analysis `operators`: its computation, its picture and its words."""
