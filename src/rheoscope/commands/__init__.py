"""The command line: one file per command, with typer signatures and little else."""
