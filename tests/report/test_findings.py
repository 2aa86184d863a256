"""Findings: what is planted is told with its number, what fails its null is not, and nothing is told without one."""

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


def told(controls: tuple[dict[str, xr.Dataset], ...] = (), **found: xr.Dataset) -> list[str]:
    return [one.text for one in findings(planted.answers(found, controls), max_findings=99)[0]]


@pytest.mark.parametrize("name", OPERATOR_CLAIMS)
def test_heads_that_differ_from_turned_ones_are_told(name: str) -> None:
    (text,) = told(operators=planted.operators(name, 0.4))
    assert "0.4" in text
    assert told(operators=planted.operators(name, 0.001)) == []


def test_spaces_that_lie_nearer_than_turned_ones_are_told() -> None:
    assert (
        "more similar subspaces than randomly rotated heads (mean sin² of the principal angles 0.30"
        in told(distortion=planted.distortion(0.3))[0]
    )
    assert told(distortion=planted.distortion(0.61)) == []


def test_identity_that_chance_would_not_give_is_told() -> None:
    (text,) = told(transport=planted.transport(0.5, 0.0, kappa=0.1))
    assert "less efficient" in text
    assert told(transport=planted.transport(0.5, 0.0, kappa=0.51)) == []


def kept(rsa: float) -> xr.Dataset:
    return xr.Dataset({"rsa": (("point", "reference"), [[1.0], [rsa]])}, {"reference": ["embed"]})


def test_geometry_is_told_beside_the_architectures_own_doing_or_not_at_all() -> None:
    controls = tuple({"geometry_kept": kept(0.95 + 0.01 * at)} for at in range(4))
    assert "keeps less of the embedding's geometry" in told(controls, geometry_kept=kept(0.3))[0]
    assert told(controls, geometry_kept=kept(0.96)) == []
    assert told((), geometry_kept=kept(0.3)) == []


def test_nearness_that_explains_more_than_similarity_is_told() -> None:
    heads = planted.agreement(0.0)
    assert told(agreement=heads) == []
    heads["position_baseline"] = heads.position_baseline + 0.5
    assert "Scores depend more on distance" in told(agreement=heads)[0]


def test_symmetric_heads_that_read_similarity_are_told_as_a_rank_correlation() -> None:
    heads = planted.agreement(0.0)
    alike = xr.Dataset({"symmetry": heads.agreement})
    assert "follow similarity more (rank correlation 1.00" in told(agreement=heads, operators=alike)[0]
    assert "follow similarity less (rank correlation -1.00" in told(agreement=heads, operators=-alike)[0]


def test_heads_together_are_held_against_heads_turned() -> None:
    layers = xr.Dataset(
        {
            "recovered": (("layer", "heads_used"), [[0.1, 0.2]] * 6),
            "mean_recovered_null_draws": ("draw", planted.drawn(0, 0.6)),
        }
    )
    assert "recover less of the distances" in told(stack=layers)[0]
    layers["recovered"] = layers.recovered + 0.4
    assert told(stack=layers) == []


def test_a_planted_sink_and_a_planted_straight_line_are_told() -> None:
    model = rs.load()
    trace = model.trace(list(range(300, 340)))
    step = random(0, 40, 256).float()
    points = torch.stack([(1 + at) * step for at in range(len(trace.steps))])
    points[4:, 3, 9] += 4000
    found = run_analyses(
        Subject(model, None, replace(trace, points=points)),
        [report_request("trajectory"), report_request("massive_tokens")],
    )
    texts = {one.analysis: one.text for one in findings(found)[0]}
    assert "Token 3" in texts["massive_tokens"]
    assert "in coordinate 9" in texts["massive_tokens"]
    assert "Tokens move straighter than under the null: chord over path 1.00" in texts["trajectory"]


def test_the_surest_come_first_and_no_more_than_asked_for() -> None:
    found = planted.answers({"distortion": planted.distortion(0.3), "operators": planted.operators("copying", 0.2)})
    both, tested = findings(found)
    assert [one.analysis for one in both] == sorted(
        (one.analysis for one in both), key=lambda a: {o.analysis: o.q for o in both}[a]
    )
    assert tested == 2
    assert findings(found, max_findings=1)[0] == both[:1]
    assert findings(planted.answers({})) == ([], 0)
    assert len(CANDIDATES) == len(set(CANDIDATES))


def test_findings_are_told_with_what_they_cost() -> None:
    found, tested = findings(planted.answers({"operators": planted.operators("copying", 0.4)}))
    assert finding_sentences(found, tested)[0].endswith("(q < .001)")
    assert findings_dataset(found, tested).q.values[0] == found[0].q
