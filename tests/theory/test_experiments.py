"""Tests of all experiments: gaps of at most 2 %, figures, seeds, docstrings and unknown names."""

from dis import get_instructions
from inspect import getdoc, unwrap
from pathlib import Path

import numpy as np
import pytest

import rheoscope as rs
from rheoscope.report.pictures.dynamics import DRAW_FUNCTIONS as FIGURES
from tests.processes import run_in_fork, unload_packages
from tests.theory.cases import done

NAMES = sorted(rs.experiments())
SEEDED = ("causal", "free_space", "gaussian", "rank_collapse")
"""Fast experiments that use their seed."""


@pytest.mark.parametrize("name", NAMES)
def test_every_gap_is_at_most_two_percent(name: str) -> None:
    result = done(name)
    large_gaps = {
        str(q): float(gap) for q, gap in zip(result.quantity.values, result.gap.values, strict=True) if not gap <= 0.02
    }
    assert large_gaps == {}
    assert result.sizes["quantity"] >= 2


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_has_a_figure(name: str) -> None:
    """In this file, so that no other worker repeats the experiment."""
    figure = rs.plot(done(name))
    assert all(axis.get_title("left") and (axis.lines or axis.collections or axis.patches) for axis in figure.axes)
    assert len(figure.axes) == 2
    assert set(FIGURES) == set(NAMES)


def test_dots_are_measurements_and_lines_are_theory() -> None:
    result = done("equiangular")
    line, dots = rs.plot(result).axes[0].lines[:2]
    assert line.get_ydata() == pytest.approx(result.cosine_ode.values[0])
    assert dots.get_ydata() == pytest.approx(result.cosine.values[0])
    assert dots.get_linestyle() == "None"


@pytest.mark.parametrize("name", SEEDED)
def test_another_seed_changes_the_numbers_but_not_the_agreement(name: str) -> None:
    first, second = done(name), done(name, 7)
    assert not np.array_equal(first.number.values, second.number.values)
    assert (second.gap.values <= 0.02).all()


@pytest.mark.parametrize("name", NAMES)
def test_docstring_states_whether_the_seed_is_used(name: str) -> None:
    """The bytecode shows whether an experiment reads its seed."""
    run = unwrap(rs.experiments()[name].run)
    assert "seed" in run.__code__.co_varnames + run.__code__.co_cellvars
    reads_seed = any(step.argval == "seed" for step in get_instructions(run))
    assert reads_seed != ("`seed` is unused" in " ".join((getdoc(run) or "").split()))


def test_a_deterministic_experiment_ignores_the_seed() -> None:
    assert np.allclose(done("heat").number.values, rs.dynamics("heat", 7).number.values, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_every_result_has_provenance_definitions_and_gaps(name: str) -> None:
    result, row = done(name), rs.experiments()[name]
    assert result.attrs["experiment"] == name == row.run.__name__
    assert result.attrs["source"] == row.source
    assert all(result[field].attrs["definition"] for field in result.data_vars)
    gap = np.abs(result.number - result.expected) / np.where(result.expected == 0, 1, np.abs(result.expected))
    assert np.allclose(result.gap, gap)
    docstring = getdoc(row.run) or ""
    assert all(heading in docstring for heading in ("**Formula**", "**Returns**", "**Source**"))


def test_expected_values_are_the_published_ones() -> None:
    result = done("equiangular")
    published = [
        float(e) for e, why in zip(result.expected.values, result.why.values, strict=True) if why == "published"
    ]
    assert published == [2.71, 8.31, 4.18]
    assert done("long_context").expected.values[:3] == pytest.approx([1, 0.6316, 0.3], abs=1e-4)
    assert done("heat").expected.values[:2].tolist() == [0.5, 1.0]
    assert float(done("rank_collapse").expected[0]) == 3


def test_contrasts_are_far_from_theory() -> None:
    assert abs(float(done("gaussian").contrast[1]) / float(done("gaussian").expected[1]) - 1) > 0.5
    assert float(done("energy").contrast[0]) > 80
    assert float(done("rank_collapse").contrast[0]) < 1e-12 < 1 < float(done("rank_collapse").contrast[1])
    assert float(done("sinkformer").contrast[0]) > 0.3
    assert float(done("metastable").contrast[-1]) > 20


@pytest.mark.parametrize(("name", "suggestion"), [("heet", "heat"), ("meta stable", "metastable")])
def test_a_misspelt_name_gets_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=f"expected one of {suggestion}.*; type rs.dynamics") as error:
        rs.dynamics(name)
    assert "\n" not in str(error.value)
    assert error.value.on("shell").endswith(f"; type rheoscope dynamics {suggestion}")


def test_an_unknown_name_lists_all_experiments() -> None:
    with pytest.raises(
        rs.RheoscopeError,
        match=r"unknown experiment 'xyzzy', expected one of equiangular, energy, .*; type rs.dynamics",
    ):
        rs.dynamics("xyzzy")


def imported_in_any_order() -> None:
    unload_packages()
    import rheoscope as reloaded
    import rheoscope.report.pictures.dynamics as module
    import rheoscope.theory.particles

    assert reloaded is not rs
    for _ in range(2):
        assert callable(reloaded.dynamics)
        assert reloaded.dynamics is not module
        from rheoscope import dynamics

        assert dynamics is reloaded.dynamics
        import rheoscope.report.theory_report


def test_rs_dynamics_stays_a_function_after_submodule_imports() -> None:
    process = run_in_fork(imported_in_any_order)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("name", NAMES)
def test_guide_describes_every_experiment(name: str) -> None:
    guide = Path(__file__).resolve().parents[2] / "docs" / "guide" / "dynamics.md"
    assert f"\n**{name}.** " in guide.read_text(encoding="utf-8")
