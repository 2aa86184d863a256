"""Answers to questions: claims about one text, the verdict that they give, and their nulls and controls as text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rheoscope.messages.message import Message
from rheoscope.messages.numbers import format_number
from rheoscope.statistics.statement import Statement

YES, NO, UNCLEAR = Message("yes"), Message("no"), Message("unclear")
DETECTABLE_SDS = 2.5
"""An effect of this many standard deviations of the null is detected in most texts. A smaller one cannot be denied."""


@dataclass(frozen=True)
class Claim:
    """A claim behind a question: whether it holds if the statement is significant, and the smallest effect of interest.

    A statement that is not significant denies the claim only if an effect of that size would have been detected.

    >>> Claim(Statement("", "a", 0.3, 0.0, 0.01, p=0.001, q=0.01), holds=True, min_effect=0.05).answer
    'yes'
    """

    statement: Statement
    holds: bool
    min_effect: float

    @property
    def answer(self) -> Message:
        statement = self.statement
        if statement.is_significant:
            return YES if self.holds else NO
        is_detectable = math.isfinite(statement.p) and DETECTABLE_SDS * statement.spread <= self.min_effect
        return NO if is_detectable else UNCLEAR


@dataclass(frozen=True)
class Verdict:
    """A question, its answer as a word and as a sentence, and the command that shows more.

    `statements` are the tests behind it. It has none if the answer is a measured number with its error.
    """

    question: str
    answer: str
    line: str
    deeper: str
    statements: Sequence[Statement] = ()


def control_text(values: Sequence[float]) -> str:
    """The mean over untrained controls, to be appended to a sentence; empty without controls.

    >>> control_text([0.1, 0.3]), control_text([])
    ('; untrained .20', '')
    """
    return Message("; untrained {value}", value=format_number(float(np.mean(values)))) if values else ""


def null_text(statement: Statement) -> str:
    """The null distribution as mean ± standard deviation.

    >>> null_text(Statement("", "a", 0.3, 0.0, 0.25, p=0.2))
    '.00 ± .25'
    """
    if not (math.isfinite(statement.null) and math.isfinite(statement.spread)):
        return Message("unknown")
    return f"{format_number(statement.null)} ± {format_number(statement.spread)}"
