"""`rheoscope doctor`: what this machine can run, and what to type for the rest."""

from typing import Annotated

import typer


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print the checks as JSON.")] = False,
) -> None:
    """Check what this machine can run.

    Each line says what is installed, what it enables, and what to type if it is missing.

    Examples:  rheoscope doctor    ·    rheoscope doctor --json
    """
    from rheoscope.report.machine_checks import show_checks

    show_checks(as_json=json)
