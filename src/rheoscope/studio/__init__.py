"""The page: a server on loopback, and the same answers as static files."""
