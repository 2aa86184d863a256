"""The analysis `rollout`: its computation, its picture and its words."""
