"""One space E, two operators a head: weights as operators (View) and texts as points (Trace)."""
