"""The analysis `composition`: its computation, its picture and its words."""
