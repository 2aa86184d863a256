"""What the cards of an atlas have in common: sentences over several models, and none over a single one."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rheoscope.messages.message import Message, Verbatim, join
from rheoscope.picture.blocks import Cell, Lines, Table
from rheoscope.report.card_blocks import claims_of
from rheoscope.report.forest_plot import ANSWERS
from rheoscope.space.published_finding import Comparison, PublishedFinding

if TYPE_CHECKING:
    import xarray

MIN_MODELS = 2
"""The smallest number of models behind a sentence of the atlas."""


def shared_answers(result: "xarray.Dataset", groups: Mapping[str, str]) -> Lines:
    """One sentence per claim: how many models have each answer. `groups` has a name per cloud, such as causal or bidirectional."""
    lines = []
    for claim in claims_of(result):
        answers = {
            str(model): str(answer)
            for model, answer in zip(result.model.values, result.answer.sel(claim=claim.name).values, strict=True)
            if answer
        }
        lines.append(
            Message("{claim}: {answers}", claim=claim.statement, answers=answer_sentence(answers, groups))
            if len(answers) >= MIN_MODELS
            else Message(
                "{claim}: measured on {n} of {total} models, so the atlas says nothing",
                claim=claim.statement,
                n=len(answers),
                total=result.sizes["model"],
            )
        )
    return Lines(Message("What the models have in common"), lines)


def answer_sentence(answers: Mapping[str, str], groups: Mapping[str, str]) -> Message:
    """The answer of all models, or the number of models with each answer, by group if every group has several models."""
    counts = Counter(answers.values())
    if len(counts) == 1:
        (answer,) = counts
        return Message("{answer} in all {n} models", answer=ANSWERS[answer], n=len(answers))
    sizes = Counter(groups[model] for model in answers)
    if len(sizes) == 1 or min(sizes.values()) < MIN_MODELS:
        return _counted(list(answers.values()))
    parts = [
        Message("{group}: {counts}", group=name, counts=_counted([a for m, a in answers.items() if groups[m] == name]))
        for name in sizes
    ]
    return join("; ", parts)


def _counted(answers: list[str]) -> Message:
    """How many models have each answer, the most frequent one first."""
    return join(
        ", ", [Message("{answer} {n}", answer=ANSWERS[answer], n=n) for answer, n in Counter(answers).most_common()]
    )


def finding_tables(comparisons: Mapping[PublishedFinding, Mapping[str, Comparison | None]]) -> list[Table]:
    """A table per published finding: whether each model agrees, and with which numbers."""
    return [_finding_table(finding, rows) for finding, rows in comparisons.items()]


def _finding_table(finding: PublishedFinding, rows: Mapping[str, Comparison | None]) -> Table:
    header = [Cell(Message("model")), Cell(Message("answer")), Cell(Message("numbers"))]
    answers = [_comparison_cells(name, comparison) for name, comparison in rows.items()]
    note = join(" ", [finding.criterion, Message("Source: {source}", source=Verbatim(finding.source))])
    return Table(finding.statement, header, answers, frozenset(range(3)), note=note)


def _comparison_cells(name: str, comparison: Comparison | None) -> list[Cell]:
    if comparison is None:
        return [Cell(Verbatim(name)), Cell(Message("not measured")), Cell("")]
    answer = Message("agrees") if comparison.agrees else Message("disagrees")
    return [Cell(Verbatim(name)), Cell(answer), Cell(comparison.numbers)]
