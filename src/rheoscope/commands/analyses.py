"""`rheoscope analyses`: the catalogue of analyses as a table."""


def analyses() -> None:
    """List every analysis with its question.

    Examples:  rheoscope analyses
    """
    from rheoscope.commands.analysis_command import show_catalogue

    show_catalogue()
