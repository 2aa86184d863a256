"""The questions about a text in a model: each answer with its number, its null and the untrained control."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rheoscope.report.analysis_runs import Controls, Subject, run_analyses
from rheoscope.report.findings import ALL_WORDS, FAMILY_SIZE
from rheoscope.report.report_settings import report_request
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.questions import Question
from rheoscope.space.results import Results
from rheoscope.space.trace import Trace
from rheoscope.statistics.statement import SIGNIFICANCE_LEVEL

if TYPE_CHECKING:
    import xarray

QUESTIONS: tuple[Question, ...] = tuple(
    replace(question, family_size=FAMILY_SIZE)
    for question in sorted(
        (words.question for words in ALL_WORDS.values() if words.question), key=lambda question: question.order
    )
)
"""The questions of all analyses, in their order."""


def verdicts(model: Model, trace: Trace, controls: Sequence[Model] = ()) -> "xarray.Dataset":
    """Seven questions about a text in a model, each answered yes, no or unclear.

    **Question** Does attention follow similarity, and do the projections deform the geometry? Do tokens move along a gradient,
    keep their identity, form clusters by meaning? Would the layers converge, and where does the prediction form?

    **Returns** (question): `answer`, `line` (the number, its null and the control in a sentence), `deeper` (a command that shows
    more); (statement): `value`, `null`, `spread`, `p`, `q` and the `analysis` of every test behind an answer.

    **Settings** `controls` are models of the same architecture at initial weights. The question about clusters needs three or
    more of them, the other questions use one.

    **Laws** On random text an answer is significant in at most 5 of 100 texts. Without a null there is no answer.

    **See also** `rs.analyses()` lists the analyses, `rs.save_report` draws them.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> rs.verdicts(model, model.trace("The keys to the cabinet are on the table")).sizes["question"]
    7
    """
    check_same_weights(model, trace)
    text = trace.text or trace.ids
    needed_names = dict.fromkeys(name for question in QUESTIONS for name in question.needs)
    control_subjects: Controls = [
        partial(lambda control: Subject(control, text, control.trace(trace.ids)), control) for control in controls
    ]
    return verdicts_dataset(
        run_analyses(
            Subject(model, text, trace), [report_request(name) for name in needed_names], controls=control_subjects
        )
    )


def verdicts_dataset(results: Results) -> "xarray.Dataset":
    """The answers of a run as a Dataset (question), and the statements behind them."""
    import xarray as xr

    all_verdicts = [question.verdict(results) for question in QUESTIONS]
    statements = [
        (question.name, statement)
        for question, verdict in zip(QUESTIONS, all_verdicts, strict=True)
        for statement in verdict.statements
    ]
    data = {
        name: ("question", [getattr(verdict, name) for verdict in all_verdicts])
        for name in ("answer", "line", "deeper")
    }
    data |= {
        name: ("statement", [getattr(statement, name) for _, statement in statements])
        for name in ("analysis", "value", "null", "spread", "p", "q")
    }
    coords = {"question": [verdict.question for verdict in all_verdicts], "statement": [name for name, _ in statements]}
    attributes = {
        "analysis": "verdicts",
        "controls": len(results.controls),
        "level": SIGNIFICANCE_LEVEL,
        "family": FAMILY_SIZE,
    }
    return xr.Dataset(data, coords, attributes)
