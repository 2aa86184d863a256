"""One space E with two operators per head: weights as operators (View) and texts as points (Trace)."""
