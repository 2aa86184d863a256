"""How the cloud of tokens flows through the layers."""
