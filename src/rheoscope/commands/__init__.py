"""The command line: one file per command, typer signatures and nothing else."""
