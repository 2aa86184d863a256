"""Generation as a flow: the points of new tokens from the key/value cache, and the tokens and heads that write each of them."""
