"""Findings: nothing that fails its null is told, planted facts are, and corrections equal the definition."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.stats import false_discovery_control

import rheoscope as rs
from rheoscope.report.findings import COVERS, Finding, against, corrected, findings, normal
from tests.pretrained.cases import random

TEXT = "The keys to the cabinet are on the table, and the keys to the hall are in the cabinet"


def plain(z: float, tries: int = 1, analysis: str = "a") -> Finding:
    return Finding("", analysis, z, 0.0, 1.0, z, tries)


def everything(trace) -> dict:
    found = {name: getattr(rs, name)(trace) for name in ("trajectory", "transport", "geometry_kept", "clusters")}
    found |= {"massive_tokens": rs.massive_tokens(trace), "readout": rs.readout(trace)}
    return found | {"purity": rs.purity(trace, clusters=found["clusters"]), "operators": rs.operators(trace.view)}


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
        assert normal(t, freedom) == pytest.approx(z, rel=1e-9)


@pytest.mark.parametrize(("t", "freedom"), [(1e4, 143), (-200.0, 336), (60.0, 1000), (60.0, 5000), (30.0, 1000)])
def test_a_t_rarer_than_a_float_holds_is_still_a_number(t: float, freedom: int) -> None:
    """The slow twin: the density integrated from t on, as a share of itself at t."""
    law, far = stats.t(freedom), abs(t)
    share, _ = quad(lambda u: far * np.exp(law.logpdf(far * (1 + u)) - law.logpdf(far)), 0, 40 / freedom + 40 / far)
    rare = law.logpdf(far) + np.log(share)
    z = normal(t, freedom)
    assert np.sign(z) == np.sign(t)
    assert stats.norm.logcdf(-abs(z)) == pytest.approx(rare, rel=1e-6)
    assert abs(normal(1.01 * t, freedom)) > abs(z)


def test_a_t_that_is_no_number_stays_none() -> None:
    assert normal(float("inf"), 9) == float("inf")
    assert np.isnan(normal(float("nan"), 9))
    assert normal(0.0, 9) == 0


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
    for name in ("operators", "readout", "geometry_kept"):  # the model's own weights; a sum keeps what it began with
        found.pop(name)
    assert findings(found)[0] == []


def test_a_planted_sink_and_a_planted_straight_line_are_told() -> None:
    trace = rs.load().trace(list(range(300, 340)))
    step = random(0, 40, 256).float()
    points = torch.stack([(1 + at) * step for at in range(len(trace.steps))])
    points[4:, 3, 9] += 4000
    found = everything(replace(trace, points=points))
    told = {one.analysis: one for one in findings(found, most=9)[0]}
    assert "Token 3" in told["massive_tokens"].text
    assert "in coordinate 9" in told["massive_tokens"].text
    assert "Tokens go straighter than chance: chord over path 1.00" in told["trajectory"].text
    assert math.isclose(told["trajectory"].value, 1, rel_tol=1e-5)


def covered(trace) -> dict:
    found = {"agreement": rs.agreement(trace, draws=8), "operators": rs.operators(trace.view)}
    return found | {"distortion": rs.distortion(trace, nearest=3, draws=2), "stack": rs.stack(trace, draws=2)}


def test_covers_tell_what_beats_its_null_and_count_what_does_not() -> None:
    found = covered(rs.load().trace(TEXT))
    told, tested = findings(found, 9, COVERS)
    assert all(one.q <= 0.05 for one in told)
    assert len({(one.analysis, one.about) for one in told}) == len(told)
    heads = found["agreement"].agreement.size
    assert tested == 2 * heads + 1 + 1 + 4 + 2  # both signs of every head, nearness, symmetry, distortion, stack
    flat = found["agreement"].copy(deep=True)
    flat["q_value"][:] = 1.0
    assert not [one for one in findings({"agreement": flat}, 9, COVERS)[0] if one.about != "nearness"]


def test_planted_heads_that_read_similarity_and_its_opposite_are_told_by_name() -> None:
    found = rs.agreement(rs.load().trace(TEXT), draws=20).copy(deep=True)
    found["z"][:], found["q_value"][:] = 0.0, 1.0
    for (layer, head), value, z in (((2, 1), 0.9, 9.0), ((3, 3), -0.8, -8.0), ((4, 0), 0.5, 5.0)):
        found["agreement"][layer, head], found["z"][layer, head], found["q_value"][layer, head] = value, z, 1e-6
        found["null_mean"][layer, head], found["null_sd"][layer, head] = 0.0, 0.1
    told = {one.about: one for one in findings({"agreement": found}, 9, COVERS)[0]}
    like, unlike = told["similarity in E"], told["its opposite"]
    assert like.text.startswith("2 of 24 heads read similarity in E beyond random heads")
    assert "L2.H1 most: rank correlation 0.90 given distance and length, random 0.00 ± 0.10" in like.text
    assert unlike.text.startswith("1 of 24 heads read its opposite")
    assert "(20 draws each), L3.H3 most" in unlike.text
    assert like.z > 0 > unlike.z
    assert like.tries == 24


def test_symmetric_heads_that_agree_are_told_as_a_rank_correlation() -> None:
    found = covered(rs.load().trace(TEXT))
    found["operators"]["symmetry"] = found["agreement"].agreement.copy()
    told = {(one.analysis, one.about): one for one in findings(found, 99, COVERS)[0]}
    assert told["operators", "agreement"].value == pytest.approx(1.0)
    assert told["operators", "agreement"].spread == pytest.approx(1 / math.sqrt(23))
    found["operators"]["symmetry"] = -found["agreement"].agreement
    told = {(one.analysis, one.about): one for one in findings(found, 99, COVERS)[0]}
    assert "read similarity less: rank correlation -1.00" in told["operators", "agreement"].text
