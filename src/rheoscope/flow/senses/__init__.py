"""The analysis `senses`."""
