"""Every figure draws what it is given."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import rheoscope as rs
from rheoscope.attention.survey import cloud, survey
from rheoscope.report.plot.attention import field, plot_attention
from rheoscope.report.plot.dynamics import DRAWN, plot_dynamics
from rheoscope.report.plot.operators import plot_operators
from tests.flow.dynamics.cases import done


def test_one_panel_for_each_mechanism() -> None:
    points = cloud()
    rows = survey(points, tokens=64, width=8)[:8]
    figure = plot_attention(rows, points)
    titles = [axis.get_title("left") for axis in figure.axes]
    assert [title for title in titles if title] == [row.named.name for row in rows]


def test_the_field_is_the_score_of_a_key_placed_there() -> None:
    points = cloud()
    metric = next(row for row in survey(points, tokens=64, width=8) if row.named.name == "metric")
    xs = torch.linspace(-2, 2, 5, dtype=torch.float64)
    seen = field(metric, torch.tensor([1.0, 0.0], dtype=torch.float64), xs)
    assert seen.argmax() == 2 * 5 + 3
    assert seen[2, 3] == 0


def test_a_map_for_every_number() -> None:
    model = rs.load(GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=2, n_embd=8, vocab_size=9, n_positions=16)))
    figure = plot_operators(rs.operators(model.view))
    maps = [axis.images[0].get_array() for axis in figure.axes if axis.images]
    assert len(maps) == 7
    assert all(values.shape == (3, 2) for values in maps)


@pytest.mark.parametrize("name", sorted(rs.experiments()))
def test_every_experiment_has_its_figure(name: str) -> None:
    figure = plot_dynamics(done(name))
    figure.draw_without_rendering()
    assert all(axis.get_title("left") and (axis.lines or axis.collections or axis.patches) for axis in figure.axes)
    assert len(figure.axes) == 2
    assert set(DRAWN) == set(rs.experiments())


def test_dots_are_what_was_measured_and_lines_what_theory_gives() -> None:
    told = done("equiangular")
    line, dots = plot_dynamics(told).axes[0].lines[:2]
    assert line.get_ydata() == pytest.approx(told.cosine_ode.values[0])
    assert dots.get_ydata() == pytest.approx(told.cosine.values[0])
    assert dots.get_linestyle() == "None"
