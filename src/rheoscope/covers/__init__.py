"""What projections do to geometry: the operators of every head, and what they make of the tokens."""
