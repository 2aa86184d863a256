"""Geometry during training: observing changes nothing, survives a resume, and equals the analyses."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.checkpoint_series import load_series
from rheoscope.learn.geometry_over_training import (
    LEARNED,
    MAX_TOKENS,
    QUANTITIES,
    GeometryObserver,
    learned,
    learned_of_series,
    observe_geometry,
    parse_steps,
)
from rheoscope.learn.geometry_report import build_page, build_table, show_learned
from rheoscope.models.checkpoint import initial_network
from rheoscope.models.training_state import OBSERVATIONS
from rheoscope.report.run_report import OutputFiles
from rheoscope.shapes import RheoscopeError
from tests.models.runs import masked, prose, run, small, translation, translator
from tests.pretrained.cases import once

STEPS = (0, 2, 5)


def run_observed(out: Path, recipe: Any = None, task: Any = None, **options: Any) -> None:
    recipe, task = recipe or small(steps=5), task or prose()
    run(out, recipe, task, observe=GeometryObserver.from_task(STEPS, out, task, recipe), **options)


@once
def observed_run(folder: Path) -> Path:
    run_observed(folder)
    return folder


@pytest.fixture(scope="module")
def observed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return observed_run(tmp_path_factory.mktemp("run"))


def test_observations_do_not_change_the_training(observed_folder: Path, tmp_path: Path) -> None:
    run(tmp_path, small(steps=5))
    for name in ("model.safetensors", "figures.json", "last/model.safetensors", "last/optimiser.safetensors"):
        assert (tmp_path / name).read_bytes() == (observed_folder / name).read_bytes(), name


def test_a_resumed_run_has_the_same_observations(observed_folder: Path, tmp_path: Path) -> None:
    run_observed(tmp_path, stop_at=3)
    assert [file.name for file in sorted((tmp_path / OBSERVATIONS).iterdir())] == [
        "step-000000.json",
        "step-000002.json",
    ]
    run_observed(tmp_path)
    files_by_run = [
        {file.name: file.read_bytes() for file in (out / OBSERVATIONS).iterdir()} for out in (observed_folder, tmp_path)
    ]
    assert files_by_run[0] == files_by_run[1]
    assert len(files_by_run[0]) == 3


def test_checkpoints_are_measured_as_the_run_measured_them(observed_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(observed_folder, tmp_path / "checkpoint-5")
    inputs, _ = next(iter(prose().held_out_batches(small(steps=5))))
    result, expected = learned_of_series(load_series(tmp_path), inputs[0, :MAX_TOKENS]), learned(observed_folder)
    assert result.training_step.values.tolist() == [5]
    for name in expected.data_vars:
        assert np.allclose(result[name][-1], expected[name][-1], rtol=1e-5, equal_nan=True), name


def test_a_folder_of_checkpoints_needs_a_text(observed_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(observed_folder, tmp_path / "checkpoint-5")
    with pytest.raises(RheoscopeError, match=r"has no observations; .* rheoscope learned .* TEXT"):
        learned(tmp_path)


def test_an_observation_equals_the_analyses(observed_folder: Path) -> None:
    """The last observation against analyses of the saved model, the first against the untrained model."""
    result = learned(observed_folder)
    assert result.training_step.values.tolist() == list(STEPS)
    recipe, task = small(steps=5), prose()
    ids = next(iter(task.held_out_batches(recipe)))[0][0]
    last = rs.load(observed_folder / "last")
    trace = last.trace(ids)
    assert float(result.symmetry[-1]) == pytest.approx(float(rs.operators(last.view).symmetry.mean()), abs=1e-6)
    assert float(result.agreement[-1]) == pytest.approx(float(rs.agreement(trace, draws=0).agreement.mean()), abs=1e-6)
    assert float(result.residual[-1]) == pytest.approx(float(rs.fixed_point(last, trace).residual.mean()), abs=1e-6)
    assert float(result.toward_next[-1]) == pytest.approx(float(rs.transport(trace).toward_next[-1]), abs=1e-6)
    assert float(result.induction[-1]) == pytest.approx(float(rs.head_types(last).induction.max()), abs=1e-6)
    weights = torch.stack([trace.weights(layer, head) for layer in range(2) for head in range(2)])
    itself = weights.diagonal(dim1=-2, dim2=-1)[:, 1:].mean(-1)
    assert result.itself_by_head[-1].values.ravel() == pytest.approx(itself.numpy(), abs=1e-6)
    first = observe_geometry(initial_network(recipe.config, recipe.seed), ids)
    assert float(result.symmetry[0]) == pytest.approx(first["values"]["symmetry"], abs=1e-6)


def test_every_quantity_is_reported_and_declared(observed_folder: Path) -> None:
    result = learned(observed_folder)
    assert set(QUANTITIES) <= set(result.data_vars) <= set(LEARNED.fields)
    assert all(result[name].attrs["definition"] for name in result.data_vars)
    assert len(rs.plot(result).axes) >= len(QUANTITIES)
    table = build_table(result)
    assert len(table.rows) == 3
    assert len(table.header) == 1 + len(QUANTITIES)
    assert "Effective rank" in build_page(result).to_html()


def test_the_command_prints_and_writes(
    observed_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_learned(
        observed_folder, OutputFiles(tmp_path / "l.json", tmp_path / "tables", tmp_path / "l.html"), explain=True
    )
    assert "Symmetry" in capsys.readouterr().out
    stored = json.loads((tmp_path / "l.json").read_text())["learned"]
    assert stored["data_vars"]["symmetry"]["data"] == learned(observed_folder).symmetry.values.tolist()
    assert (tmp_path / "tables" / "learned.training_step.csv").is_file()


def test_an_observation_leaves_the_mode_of_every_module() -> None:
    """Parts that are frozen in evaluation mode during training stay in it."""
    recipe, task = small(steps=5), prose()
    model = initial_network(recipe.config, recipe.seed).train()
    first_block = next(module for name, module in model.named_modules() if name.endswith("blocks.0"))
    first_block.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    observe_geometry(model, next(iter(task.held_out_batches(recipe)))[0][0])
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert set(modes.values()) == {True, False}


def test_unsupported_quantities_are_named(tmp_path: Path) -> None:
    """An encoder sees later tokens, and with post-norm a layer is not a map of E."""
    recipe, task = small(form="encoder", placement="post", norm="layer", mechanism="kernel_laplace", steps=1), masked()
    recipe = recipe.with_changes(vocabulary=12)
    from rheoscope.models.config import Config

    model = initial_network(Config(**{**recipe.config.__dict__, "vocabulary": 12}), 0)
    observation = observe_geometry(model, next(iter(task.held_out_batches(recipe)))[0][0])
    assert {"toward_next", "residual", "symmetry", "positive_share"} <= set(observation["left_out"])
    assert {"itself", "sink", "effective_rank"} <= set(observation["values"])
    assert model.training


@pytest.mark.parametrize("text", ["a", "1.5", "-3,4", ""])
def test_steps_must_be_whole_numbers(text: str) -> None:
    with pytest.raises(RheoscopeError, match="look must be") as error:
        parse_steps(text)
    assert error.value.on("shell").endswith("; type --look 0,100,300,1000")


def test_unusable_steps_and_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match=r"look must be between 0 and 5, .* got 9; type look=\[0\]"):
        GeometryObserver.from_task([0, 9], tmp_path, prose(), small(steps=5))
    with pytest.raises(RheoscopeError, match="got an encoder-decoder"):
        GeometryObserver.from_task([0], tmp_path, translation(), translator())
    with pytest.raises(
        RheoscopeError, match=r"has no observations; on the command line type rheoscope train RECIPE --look"
    ):
        learned(tmp_path)
