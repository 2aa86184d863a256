"""HOW a mechanism runs: each lowering equals the reference; `choose` says which one is taken and why."""
