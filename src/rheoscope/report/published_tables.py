"""Tables of published findings: whether each model of an atlas agrees, and with which numbers."""

from collections.abc import Mapping

from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.picture.blocks import Cell, Table
from rheoscope.space.published_finding import Comparison, PublishedFinding


def finding_tables(comparisons: Mapping[PublishedFinding, Mapping[str, Comparison | None]]) -> list[Table]:
    """A table per published finding: whether each model agrees, and with which numbers."""
    return [_finding_table(finding, rows) for finding, rows in comparisons.items()]


def _finding_table(finding: PublishedFinding, rows: Mapping[str, Comparison | None]) -> Table:
    header = [Cell(Message("model")), Cell(Message("answer")), Cell(Message("numbers"))]
    answers = [_comparison_cells(name, comparison) for name, comparison in rows.items()]
    note = join(
        " ", [count_sentence(rows), finding.criterion, Message("Source: {source}", source=Verbatim(finding.source))]
    )
    return Table(finding.statement, header, answers, frozenset(range(3)), note=note)


def count_sentence(rows: Mapping[str, Comparison | None]) -> Message:
    """How many of the clouds that a finding is about agree with it."""
    answers = [
        comparison.agrees for comparison in rows.values() if comparison is not None and comparison.agrees is not None
    ]
    return Message("{n} of {total} agree.", n=sum(answers), total=len(answers))


def _comparison_cells(name: str, comparison: Comparison | None) -> list[Cell]:
    if comparison is None:
        return [Cell(Verbatim(name)), Cell(Message("not measured")), Cell("")]
    answers = {True: Message("agrees"), False: Message("disagrees"), None: Message("no prediction")}
    return [Cell(Verbatim(name)), Cell(answers[comparison.agrees]), Cell(comparison.numbers)]
