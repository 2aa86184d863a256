"""Analyses of how the cloud of tokens moves through the layers."""
