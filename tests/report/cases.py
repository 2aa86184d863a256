"""Datasets and pages that the tests of reports share."""

from functools import cache
from typing import Any

import rheoscope as rs
from rheoscope.report.answers import Answers, answers
from tests.report.parts import Parts

TEXT = "The keys to the cabinet are on the table in the hall, and the old cabinet is in the old hall."
FLOW = ("readout", "trajectory", "transport", "kept", "clusters", "purity", "massive", "energy", "scores")
COVERS = ("agreement", "torn", "head_types")
"""What the main report shows of the covers."""


@cache
def model() -> Any:
    return rs.load()


@cache
def told(text: str = TEXT) -> Answers:
    return answers(model(), model().trace(text))


__all__ = ["COVERS", "FLOW", "TEXT", "Parts", "model", "told"]
