"""Planted effects are findings with their number; effects within their null are not."""

from dataclasses import replace

import pytest
import torch
import xarray as xr

import rheoscope as rs
from rheoscope.covers.operators.words import OPERATOR_CLAIMS
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.findings import CANDIDATES, finding_sentences, findings, findings_dataset
from rheoscope.report.report_settings import report_request
from tests.pretrained.cases import random
from tests.report import planted


def finding_texts(**datasets: xr.Dataset) -> list[str]:
    return [statement.text for statement in findings(planted.results(datasets), max_findings=99)[0]]


@pytest.mark.parametrize("name", OPERATOR_CLAIMS)
def test_heads_that_differ_from_rotated_ones_are_a_finding(name: str) -> None:
    (text,) = finding_texts(operators=planted.operators(name, 0.4))
    assert "0.4" in text
    assert finding_texts(operators=planted.operators(name, 0.001)) == []


def test_similar_query_and_key_subspaces_are_a_finding() -> None:
    assert (
        "more similar subspaces than randomly rotated heads (mean sin² of the principal angles 0.30"
        in finding_texts(distortion=planted.distortion(0.3))[0]
    )
    assert finding_texts(distortion=planted.distortion(0.61)) == []


def test_unusual_transport_is_a_finding() -> None:
    (text,) = finding_texts(transport=planted.transport(0.5, 0.0, kappa=0.1))
    assert "less efficient" in text
    assert finding_texts(transport=planted.transport(0.5, 0.0, kappa=0.51)) == []


def test_position_effects_are_a_finding() -> None:
    heads = planted.agreement(0.0)
    assert finding_texts(agreement=heads) == []
    heads["position_baseline"] = heads.position_baseline + 0.5
    assert "Scores depend more on distance" in finding_texts(agreement=heads)[0]


def test_symmetry_and_agreement_are_compared_by_rank_correlation() -> None:
    heads = planted.agreement(0.0)
    symmetry = xr.Dataset({"symmetry": heads.agreement})
    assert "follow similarity more (rank correlation 1.00" in finding_texts(agreement=heads, operators=symmetry)[0]
    assert "follow similarity less (rank correlation -1.00" in finding_texts(agreement=heads, operators=-symmetry)[0]


def test_stacked_heads_are_compared_with_rotated_heads() -> None:
    layers = xr.Dataset(
        {
            "recovered": (("layer", "heads_used"), [[0.1, 0.2]] * 6),
            "mean_recovered_null_draws": ("draw", planted.null_samples(0, 0.6)),
        }
    )
    assert "recover less of the distances" in finding_texts(stack=layers)[0]
    layers["recovered"] = layers.recovered + 0.4
    assert finding_texts(stack=layers) == []


def test_a_planted_sink_and_straight_paths_are_findings() -> None:
    """Random signs make 12 equal displacements straight in 1 of 2,048 draws."""
    model = rs.load()
    trace = model.trace(list(range(300, 340)))
    step = random(0, 40, 256).float()
    points = torch.stack([(1 + index) * step for index in range(len(trace.steps))])
    points[4:, 3, 9] += 4000
    results = run_analyses(
        Subject(model, None, replace(trace, points=points)),
        [report_request("trajectory"), report_request("massive_tokens")],
    )
    texts = {statement.analysis: statement.text for statement in findings(results)[0]}
    assert "Token 3" in texts["massive_tokens"]
    assert "in coordinate 9" in texts["massive_tokens"]
    assert "Tokens move straighter than under the null: chord over path 1.00" in texts["trajectory"]


def test_findings_are_sorted_and_limited() -> None:
    results = planted.results({"distortion": planted.distortion(0.3), "operators": planted.operators("copying", 0.2)})
    statements, tested = findings(results)
    assert [statement.analysis for statement in statements] == sorted(
        (statement.analysis for statement in statements), key=lambda a: {o.analysis: o.q for o in statements}[a]
    )
    assert tested == 2
    assert findings(results, max_findings=1)[0] == statements[:1]
    assert findings(planted.results({})) == ([], 0)
    assert len(CANDIDATES) == len(set(CANDIDATES))


def test_findings_have_q_values() -> None:
    statements, tested = findings(planted.results({"operators": planted.operators("copying", 0.4)}))
    assert finding_sentences(statements, tested)[0].endswith("(q < .001)")
    assert findings_dataset(statements, tested).q.values[0] == statements[0].q
