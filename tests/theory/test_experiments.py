"""Every experiment reproduces its numbers; names are looked up, and a wrong one is told in one line."""

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
DRAWN = ("causal", "free_space", "gaussian", "rank_collapse")
"""Experiments that read their seed, where doing one again takes a moment."""


@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_within_two_percent(name: str) -> None:
    told = done(name)
    far = {str(q): float(gap) for q, gap in zip(told.quantity.values, told.gap.values, strict=True) if not gap <= 0.02}
    assert far == {}
    assert told.sizes["quantity"] >= 2


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_has_its_figure(name: str) -> None:
    """Here, beside its numbers: so no other worker does the experiment again."""
    figure = rs.plot(done(name))
    assert all(axis.get_title("left") and (axis.lines or axis.collections or axis.patches) for axis in figure.axes)
    assert len(figure.axes) == 2
    assert set(FIGURES) == set(NAMES)


def test_dots_are_what_was_measured_and_lines_what_theory_gives() -> None:
    told = done("equiangular")
    line, dots = rs.plot(told).axes[0].lines[:2]
    assert line.get_ydata() == pytest.approx(told.cosine_ode.values[0])
    assert dots.get_ydata() == pytest.approx(told.cosine.values[0])
    assert dots.get_linestyle() == "None"


@pytest.mark.parametrize("name", DRAWN)
def test_another_seed_gives_other_particles_and_the_same_theory(name: str) -> None:
    first, other = done(name), done(name, 7)
    assert not np.array_equal(first.number.values, other.number.values)
    assert (other.gap.values <= 0.02).all()


@pytest.mark.parametrize("name", NAMES)
def test_what_says_it_reads_no_seed_reads_none_and_all_others_do(name: str) -> None:
    """Its code never loads the name, so that doing it again could show nothing more."""
    run = unwrap(rs.experiments()[name].run)
    assert "seed" in run.__code__.co_varnames + run.__code__.co_cellvars
    read = any(step.argval == "seed" for step in get_instructions(run))
    assert read != ("`seed` is not read" in " ".join((getdoc(run) or "").split()))


def test_what_reads_no_seed_gives_the_same_numbers_for_another() -> None:
    assert np.allclose(done("heat").number.values, rs.dynamics("heat", 7).number.values, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_every_result_says_what_it_is(name: str) -> None:
    told, row = done(name), rs.experiments()[name]
    assert told.attrs["experiment"] == name == row.run.__name__
    assert told.attrs["source"] == row.source
    assert all(told[field].attrs["definition"] for field in told.data_vars)
    gap = np.abs(told.number - told.expected) / np.where(told.expected == 0, 1, np.abs(told.expected))
    assert np.allclose(told.gap, gap)
    page = getdoc(row.run) or ""
    assert all(word in page for word in ("**Formula**", "**Numbers**", "**Source**"))


def test_published_numbers() -> None:
    told = done("equiangular")
    published = [float(e) for e, why in zip(told.expected.values, told.why.values, strict=True) if why == "published"]
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


@pytest.mark.parametrize(("typed", "said"), [("heet", "type one of heat"), ("meta stable", "type one of metastable")])
def test_a_name_that_is_nearly_one_is_told(typed: str, said: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=said) as error:
        rs.dynamics(typed)
    assert "\n" not in str(error.value)


def test_a_name_like_none_lists_all() -> None:
    with pytest.raises(rs.RheoscopeError, match="unknown experiment 'xyzzy'; type one of equiangular, energy"):
        rs.dynamics("xyzzy")


def imported_in_any_order() -> None:
    unload_packages()
    import rheoscope as again
    import rheoscope.report.pictures.dynamics as module
    import rheoscope.theory.particles

    assert again is not rs
    for _ in range(2):
        assert callable(again.dynamics)
        assert again.dynamics is not module
        from rheoscope import dynamics

        assert dynamics is again.dynamics
        import rheoscope.report.theory_report


def test_the_name_stays_a_function_whatever_was_imported() -> None:
    ended = run_in_fork(imported_in_any_order)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("name", NAMES)
def test_the_guide_tells_every_experiment(name: str) -> None:
    guide = Path(__file__).resolve().parents[2] / "docs" / "guide" / "dynamics.md"
    assert f"\n**{name}.** " in guide.read_text(encoding="utf-8")
