"""The analysis `charts`."""
