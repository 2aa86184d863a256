"""Geometry while a model learns: looks change nothing, come back after a kill, and are what the analyses say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.learn.geometry_over_training import (
    LEARNED,
    QUANTITIES,
    GeometryObserver,
    learned,
    observe_geometry,
    parse_steps,
)
from rheoscope.learn.geometry_report import build_page, build_table, show_learned
from rheoscope.models.checkpoint import initial_network
from rheoscope.models.training_state import OBSERVATIONS
from rheoscope.report.run_report import OutputFiles
from rheoscope.shapes import RheoscopeError
from tests.models.runs import masked, prose, run, run_files, small, translation, translator
from tests.pretrained.cases import once

STEPS = (0, 2, 5)


def looking(out: Path, recipe: Any = None, task: Any = None, **more: Any) -> None:
    recipe, task = recipe or small(steps=5), task or prose()
    run(out, recipe, task, observe=GeometryObserver.from_task(STEPS, out, task, recipe), **more)


@once
def found(folder: Path) -> Path:
    looking(folder)
    return folder


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return found(tmp_path_factory.mktemp("run"))


def test_looks_change_nothing(seen: Path, tmp_path: Path) -> None:
    run(tmp_path, small(steps=5))
    assert run_files(tmp_path) == run_files(seen)


def test_a_resumed_run_has_the_same_looks(seen: Path, tmp_path: Path) -> None:
    looking(tmp_path, stop_at=3)
    assert [file.name for file in sorted((tmp_path / OBSERVATIONS).iterdir())] == [
        "step-000000.json",
        "step-000002.json",
    ]
    looking(tmp_path)
    both = [{file.name: file.read_bytes() for file in (out / OBSERVATIONS).iterdir()} for out in (seen, tmp_path)]
    assert both[0] == both[1]
    assert len(both[0]) == 3


def test_a_look_is_what_the_analyses_say(seen: Path) -> None:
    """The last look, against the analyses of the model as it was saved; the first, against the untrained model."""
    told = learned(seen)
    assert told.training_step.values.tolist() == list(STEPS)
    recipe, task = small(steps=5), prose()
    ids = next(iter(task.held_out_batches(recipe)))[0][0]
    last = rs.load(seen / "last")
    trace = last.trace(ids)
    assert float(told.symmetry[-1]) == pytest.approx(float(rs.operators(last.view).symmetry.mean()), abs=1e-6)
    assert float(told.agreement[-1]) == pytest.approx(float(rs.agreement(trace, draws=0).agreement.mean()), abs=1e-6)
    assert float(told.residual[-1]) == pytest.approx(float(rs.fixed_point(last, trace).residual.mean()), abs=1e-6)
    assert float(told.toward_next[-1]) == pytest.approx(float(rs.transport(trace).toward_next[-1]), abs=1e-6)
    assert float(told.induction[-1]) == pytest.approx(float(rs.head_types(last).induction.max()), abs=1e-6)
    weights = torch.stack([trace.weights(layer, head) for layer in range(2) for head in range(2)])
    itself = weights.diagonal(dim1=-2, dim2=-1)[:, 1:].mean(-1)
    assert told.itself_by_head[-1].values.ravel() == pytest.approx(itself.numpy(), abs=1e-6)
    first = observe_geometry(initial_network(recipe.config, recipe.seed), ids)
    assert float(told.symmetry[0]) == pytest.approx(first["values"]["symmetry"], abs=1e-6)


def test_every_quantity_is_told_and_declared(seen: Path) -> None:
    told = learned(seen)
    assert set(QUANTITIES) <= set(told.data_vars) <= set(LEARNED.fields)
    assert all(told[name].attrs["definition"] for name in told.data_vars)
    assert len(rs.plot(told).axes) >= len(QUANTITIES)
    table = build_table(told)
    assert len(table.rows) == 3
    assert len(table.header) == 1 + len(QUANTITIES)
    assert "Effective rank" in build_page(told).to_html()


def test_the_command_tells_and_writes(seen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_learned(seen, OutputFiles(tmp_path / "l.json", tmp_path / "tables", tmp_path / "l.html"), explain=True)
    assert "symmetry" in capsys.readouterr().out
    held = json.loads((tmp_path / "l.json").read_text())["learned"]
    assert held["data_vars"]["symmetry"]["data"] == learned(seen).symmetry.values.tolist()
    assert (tmp_path / "tables" / "learned.training_step.csv").is_file()


def test_what_cannot_be_asked_is_named(tmp_path: Path) -> None:
    """An encoder reads what comes next, and norms after sums leave a layer without a map."""
    recipe, task = small(form="encoder", placement="post", norm="layer", mechanism="kernel_laplace", steps=1), masked()
    recipe = recipe.with_changes(vocabulary=12)
    from rheoscope.models.config import Config

    model = initial_network(Config(**{**recipe.config.__dict__, "vocabulary": 12}), 0)
    seen = observe_geometry(model, next(iter(task.held_out_batches(recipe)))[0][0])
    assert {"toward_next", "residual", "symmetry", "positive_share"} <= set(seen["left_out"])
    assert {"itself", "sink", "effective_rank"} <= set(seen["values"])
    assert model.training


@pytest.mark.parametrize("told", ["a", "1.5", "-3,4", ""])
def test_steps_are_whole(told: str) -> None:
    with pytest.raises(RheoscopeError, match="; type --look 0,100"):
        parse_steps(told)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match="got --look 9; type steps from 0 to 5"):
        GeometryObserver.from_task([0, 9], tmp_path, prose(), small(steps=5))
    with pytest.raises(RheoscopeError, match="got an encoder-decoder"):
        GeometryObserver.from_task([0], tmp_path, translation(), translator())
    with pytest.raises(RheoscopeError, match=r"holds no looks; type rheoscope train … --look"):
        learned(tmp_path)
