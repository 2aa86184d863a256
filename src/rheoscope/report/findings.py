"""Findings about a text: the statements that are significant after correction for all tests of a run.

A candidate is a function of the Results of a run. It returns one statement, or None if its analysis did not run. Each analysis
declares its candidates in its `words.py`.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rheoscope.catalogue import ANALYSIS_MODULES, words_by_name
from rheoscope.messages.message import Message, plural
from rheoscope.space.results import Results
from rheoscope.space.words import Candidate
from rheoscope.statistics.statement import SIGNIFICANCE_LEVEL, Statement, correct_for_family

if TYPE_CHECKING:
    import xarray

MAX_FINDINGS = 5
ALL_WORDS = {name: words_by_name(name) for name in ANALYSIS_MODULES}
CANDIDATES: tuple[Candidate, ...] = tuple(candidate for words in ALL_WORDS.values() for candidate in words.findings)
"""The candidates of all analyses, in the order of the catalogue."""
FAMILY_SIZE = len(CANDIDATES)
"""The number of all tests of a run. Every p-value is corrected for them."""


def analyses_with_findings() -> list[str]:
    """The analyses that declare candidates."""
    return [name for name, words in ALL_WORDS.items() if words.findings]


def findings(results: Results, max_findings: int = MAX_FINDINGS) -> tuple[list[Statement], int]:
    """The most significant statements, at most `max_findings`, and the number of places that were tested.

    **Question** What is notable about this text in this model?

    **Formula** p is the probability that chance goes as far: by Student's t for a sampled null, by the normal law for exact
    moments. q = p · tries · (number of all tests), so random data produces any finding in at most 5 of 100 texts.

    **Laws** A statement that does not beat its null is not returned. A null without spread gives no statement.

    >>> import rheoscope as rs
    >>> from rheoscope.report.analysis_runs import Request, Subject, run_analyses
    >>> model = rs.load()
    >>> text = "The keys to the cabinet are on the table"
    >>> results = run_analyses(Subject(model, text, model.trace(text)), [Request("trajectory")])
    >>> statements, n_tested = findings(results)
    >>> len(statements) <= n_tested
    True
    """
    statements = [
        statement
        for candidate in CANDIDATES
        if (statement := candidate(results)) is not None and math.isfinite(statement.p)
    ]
    corrected_statements = correct_for_family(statements, FAMILY_SIZE)
    significant = sorted(
        (statement for statement in corrected_statements if statement.q <= SIGNIFICANCE_LEVEL),
        key=lambda statement: statement.q,
    )
    return significant[:max_findings], sum(statement.tries for statement in corrected_statements)


def findings_dataset(statements: Sequence[Statement], n_tested: int) -> "xarray.Dataset":
    """Findings as a Dataset (finding). `attrs["tested"]` is the number of places that were tested.

    >>> findings_dataset([Statement("a", "b", 1.0, 0.0, 0.5, 0.001)], 7).attrs["tested"]
    7
    """
    import xarray as xr

    names = ("text", "analysis", "value", "null", "spread", "p", "q", "tries")
    data = {name: ("finding", [getattr(statement, name) for statement in statements]) for name in names}
    return xr.Dataset(data, attrs={"analysis": "findings", "tested": n_tested, "level": SIGNIFICANCE_LEVEL})


def finding_sentences(statements: Sequence[Statement], n_tested: int) -> list[str]:
    """Findings as sentences, followed by the number of tests.

    >>> finding_sentences([], 12)
    ['12 numbers were tested against their null; none is significant.']
    >>> finding_sentences([], 0)
    ['No number of this text could be tested against a null.']
    """
    if not n_tested:
        return [Message("No number of this text could be tested against a null.")]
    if not statements:
        return [
            plural(
                "{n} number was tested against its null; it is not significant.",
                "{n:,} numbers were tested against their null; none is significant.",
                n=n_tested,
            )
        ]
    lines = [Message("{finding} (q {q})", finding=statement.text, q=_format_q(statement.q)) for statement in statements]
    note = plural(
        "{n} number was tested; q is the family-wise error rate on random data.",
        "{n:,} numbers were tested; q is the family-wise error rate on random data.",
        n=n_tested,
    )
    return [*lines, note]


def _format_q(q: float) -> str:
    return "< .001" if q < 1e-3 else f"= {q:.1g}"
