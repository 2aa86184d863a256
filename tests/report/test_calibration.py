"""Random texts in untrained models give no findings: a few here, 200 in benchmarks/calibration.py."""

import pytest

from benchmarks.calibration import KINDS, candidate_statements

SHAPES = ("llama, grouped keys",)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_data_produces_no_findings(shape: str) -> None:
    """A finding is allowed in 5 of 100 cases. Seed 1 is one (M more symmetric, z = 3.5, the largest of 250 models)."""
    output = {
        kind: candidate_statements(shape, kind, tokens=40, seed=index) for index, kind in enumerate(KINDS[2:3], 2)
    }
    report = {kind: [item.analysis for item in row if item.is_significant] for kind, row in output.items()}
    assert sum(map(bool, report.values())) == 0, report
    tested = {item.analysis for row in output.values() for item in row if item.p == item.p}
    assert {
        "agreement",
        "distortion",
        "energy",
        "transport",
        "readout",
        "operators",
        "trajectory",
        "clusters",
    } <= tested
