"""The analysis `massive_tokens`: its computation, its picture and its words."""
