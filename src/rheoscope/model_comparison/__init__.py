"""Two models: what differs in their heads, in their flows and in their predictions."""
