"""Find the operators of a network from one recorded forward pass, without names of modules."""
