"""Findings: nothing that fails its null is told, planted facts are, and corrections equal the definition."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import false_discovery_control

import rheoscope as rs
from rheoscope.report.findings import Finding, against, corrected, findings, normal
from tests.pretrained.cases import random

TEXT = "The keys to the cabinet are on the table, and the keys to the hall are in the cabinet"


def plain(z: float, tries: int = 1, analysis: str = "a") -> Finding:
    return Finding("", analysis, z, 0.0, 1.0, z, tries)


def everything(trace) -> dict:
    found = {"trajectory": rs.trajectory(trace), "transport": rs.transport(trace), "kept": rs.kept(trace)}
    found |= {"clusters": rs.clusters(trace), "massive": rs.massive(trace), "readout": rs.readout(trace.view, trace)}
    return found | {"purity": rs.purity(trace, found["clusters"]), "operators": rs.operators(trace.view)}


@pytest.mark.parametrize("seed", range(3))
def test_q_values_are_benjamini_and_hochbergs(seed: int) -> None:
    z = np.random.default_rng(seed).normal(size=20) * 2
    mine = [one.q for one in corrected([plain(float(x)) for x in z])]
    np.testing.assert_allclose(mine, false_discovery_control(2 * stats.norm.sf(abs(z))), rtol=1e-9)
    dearer = [one.q for one in corrected([plain(float(x), tries=3) for x in z])]
    assert all(b >= a for a, b in zip(mine, dearer, strict=True))


@pytest.mark.parametrize("freedom", [3, 7, 19, 199])
def test_t_becomes_the_z_that_is_as_rare(freedom: int) -> None:
    for t in (0.5, 2.0, -4.0, 9.0):
        z = float(np.sign(t)) * stats.norm.isf(stats.t.sf(abs(t), freedom))
        assert normal(t, freedom) == pytest.approx(z, abs=0.06)


def test_one_more_draw_of_the_null_is_told_as_often_as_it_should_be() -> None:
    rng = np.random.default_rng(0)
    rare = 0
    for _ in range(2000):
        draws = rng.normal(size=5)
        (one,) = against("", "a", float(rng.normal()), float(draws.mean()), float(draws.std(ddof=1)), 5)
        rare += abs(one.z) > 1.96
    assert 0.03 < rare / 2000 < 0.08


def test_what_is_told_beat_its_null_one_an_analysis_and_at_most_five() -> None:
    found = everything(rs.load().trace(TEXT))
    told, tested = findings(found)
    assert 0 < len(told) <= 5 < tested
    assert len({one.analysis for one in told}) == len(told)
    assert all(one.q <= 0.05 and abs(one.z) >= 2 for one in told)
    assert [abs(one.z) for one in told] == sorted((abs(one.z) for one in told), reverse=True)
    assert findings(found, most=1)[0] == told[:1]
    assert findings({}) == ([], 0)


def test_a_cloud_of_chance_shows_nothing_but_what_it_was_given() -> None:
    trace = rs.load().trace(list(range(300, 340)))
    steps = torch.stack([random(seed, 40, 256) for seed in range(len(trace.steps))])
    found = everything(replace(trace, points=steps.cumsum(0).float()))
    for name in ("operators", "readout", "kept"):  # the model's own weights; a sum keeps what it began with
        found.pop(name)
    assert findings(found)[0] == []


def test_a_planted_sink_and_a_planted_straight_line_are_told() -> None:
    trace = rs.load().trace(list(range(300, 340)))
    step = random(0, 40, 256).float()
    points = torch.stack([(1 + at) * step for at in range(len(trace.steps))])
    points[4:, 3, 9] += 4000
    found = everything(replace(trace, points=points))
    told = {one.analysis: one for one in findings(found, most=9)[0]}
    assert "Token 3" in told["massive"].text
    assert "in coordinate 9" in told["massive"].text
    assert "Tokens go straighter than chance: chord over path 1.00" in told["trajectory"].text
    assert math.isclose(told["trajectory"].value, 1, rel_tol=1e-5)
