"""How a model runs: the residual stream, hooks, edits, the certificate, devices, progress."""
