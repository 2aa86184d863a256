"""Random texts in untrained models give no findings: a few here, 200 in benchmarks/findings_calibration.py."""

import pytest

from benchmarks.findings_calibration import KINDS, POINT_ANALYSES, candidate_statements
from rheoscope.report.findings import analyses_with_findings

SHAPES = ("llama, grouped keys",)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_data_produces_no_findings(shape: str) -> None:
    """A finding is allowed in 5 of 100 cases."""
    output = {kind: candidate_statements(shape, kind, tokens=24, seed=index) for index, kind in enumerate(KINDS[2:], 2)}
    report = {kind: [item.analysis for item in row if item.is_significant] for kind, row in output.items()}
    assert sum(map(bool, report.values())) == 0, report
    tested = {kind: {item.analysis for item in row if item.p == item.p} for kind, row in output.items()}
    assert tested["walk"] == set(POINT_ANALYSES)
    assert tested["shuffled"] | tested["walk"] == set(analyses_with_findings()) - {"massive_tokens"}
