"""Checkpoints along training: a series loads one model at a time, and any analysis over it equals that of its models."""

import copy
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray

import rheoscope as rs
from rheoscope.checkpoint_series import CheckpointSeries
from rheoscope.picture.series_panels import picture, values_of
from tests.commands.cases import run_rheoscope
from tests.pretrained.cases import network

IDS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]


@pytest.fixture(name="folder", scope="module")
def folder_of_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints, whose names sort otherwise than their steps."""
    folder = tmp_path_factory.mktemp("run")
    for step in (1000, 0, 200):
        net = copy.deepcopy(network("llama"))
        with torch.no_grad():
            for x in net.parameters():
                x.mul_(1 + step / 500)
        net.save_pretrained(folder / f"checkpoint-{step}")
    (folder / "runs").mkdir()
    (folder / "trainer_state.json").write_text("{}")
    return folder


def test_a_folder_is_sorted_by_steps_and_loaded_lazily(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    model = rs.load(network("llama"))

    def load(source: str, **options: Any) -> Any:
        opened.append(source)
        return model

    monkeypatch.setattr("rheoscope.checkpoint_series.load", load)
    series = rs.load_series(folder, device="cpu")
    assert (series.labels, opened) == ((0, 200, 1000), [])
    assert repr(series).endswith("3 checkpoints (0, 200, 1000)>")
    _ = series[-1], series[1:][0], list(series)
    assert [Path(source).name.rpartition("-")[2] for source in opened] == ["1000", "200", "0", "200", "1000"]


def test_a_series_holds_one_model_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks: list[weakref.ref[Any]] = []

    def load(**options: Any) -> Any:
        gc.collect()
        assert not any(reference() for reference in networks)
        model = rs.load(**options)
        networks.append(weakref.ref(model.network))
        return model

    monkeypatch.setattr("rheoscope.checkpoint_series.load", load)
    rs.over_series(first_layer, rs.load_series(folder))
    assert len(networks) == 3


def first_layer(view: Any) -> xarray.Dataset:
    """A result that costs nothing."""
    return xarray.Dataset({"norm": ("width", view.layer_heads[0].W_Q.detach().norm(dim=(0, 2)).numpy())})


@pytest.mark.parametrize("name", ["operators", "trajectory", "reversed_attention"])
def test_a_result_over_a_series_has_the_numbers_of_each_checkpoint(name: str, folder: Path) -> None:
    analysis, series = getattr(rs, name), rs.load_series(folder)
    result = rs.over_series(analysis, series, IDS)
    assert result.checkpoint.values.tolist() == [0, 200, 1000]
    model = series[1]
    subjects = {"view": model.view, "model": model}
    needs = {"operators": ["view"], "reversed_attention": ["model", "trace"]}.get(name, ["trace"])
    single = analysis(*(subjects.get(need) or model.trace(IDS) for need in needs))
    assert result.weights_hash.values[1] == model.view.facts["weights"]
    assert set(result.data_vars) | set(result.attrs["fields_not_shared"]) == set(single.data_vars)
    for field in result.data_vars:
        part = result[field].isel(checkpoint=1)
        assert part.dims == single[field].dims
        assert part.attrs == single[field].attrs
        assert np.array_equal(part.values, single[field].values, equal_nan=part.dtype.kind == "f")
    assert picture(result).panels
    assert dict(values_of(result).sizes) == {"checkpoint": 3}


def test_an_analysis_of_your_own_may_take_the_model(folder: Path) -> None:
    def swap(model: Any, heads: Any = None) -> Any:
        return rs.relation_swap(model, model.trace(IDS), model.trace(IDS[::-1]))

    result = rs.over_series(swap, rs.load_series(folder)[:2])
    assert result.sizes["checkpoint"] == 2


def test_revisions_are_sorted_by_their_steps() -> None:
    series = rs.load_series("EleutherAI/pythia-70m", revisions=["step1000", "step0", "step512"])
    assert series.labels == (0, 512, 1000)
    assert [options["revision"] for options in series.load_options] == ["step0", "step512", "step1000"]
    assert rs.load_series("gpt2", revisions=["main", "step5"]).labels == ("main", "step5")


def test_adapters_along_training_open_on_their_base(folder: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    for step in (2, 10):
        with torch.random.fork_rng():
            torch.manual_seed(step)
            config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
            peft_model = peft.get_peft_model(copy.deepcopy(network("llama")), config)
        peft_model.peft_config["default"].base_model_name_or_path = str(folder / "checkpoint-0")
        peft_model.save_pretrained(tmp_path / f"checkpoint-{step}")
    result = rs.over_series(rs.operators, rs.load_series(tmp_path))
    assert result.checkpoint.values.tolist() == [2, 10]
    assert len(set(result.weights_hash.values)) == 2


FAULTS: dict[str, tuple[Any, str]] = {
    "no directory": (lambda folder: rs.load_series(folder / "no"), "there is no directory .*; a hub name needs revisions; type rs.load"),
    "no checkpoints": (lambda folder: rs.load_series(folder / "runs"), "contains no folders of checkpoints; choose the directory"),
    "revisions of a directory": (lambda folder: rs.load_series(folder, revisions=["step1"]), "revisions belong to a hub name"),
    "no revisions": (lambda folder: rs.load_series("gpt2", revisions=[]), "at least 1 name"),
    "one name": (lambda folder: rs.load_series("gpt2", revisions="step1"), "must be a list"),
    "the same step": (lambda folder: rs.load_series("gpt2", revisions=["a1", "b1"]), "a1 and b1 of gpt2 have the same step 1"),
    "no text": (lambda folder: rs.over_series(rs.energy, rs.load_series(folder)), "energy reads a text, and over_series got none"),
    "no analysis": (lambda folder: rs.over_series(len, rs.load_series(folder)), "needs a function of view, trace or model"),
    "empty": (lambda folder: rs.over_series(rs.operators, []), "at least 1 checkpoint, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_series_that_cannot_be_opened_raises_one_line(fault: str, folder: Path) -> None:
    call, message = FAULTS[fault]
    with pytest.raises(rs.RheoscopeError, match=message) as error:
        call(folder)
    assert "\n" not in str(error.value)


def test_a_folder_without_a_step_in_its_name_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "config.json").write_text("{}")
    with pytest.raises(rs.RheoscopeError, match=r"the name of the checkpoint final in .* has no step"):
        rs.load_series(tmp_path)


def test_results_without_a_common_field_are_refused() -> None:
    models = CheckpointSeries("two", (0, 1), ({"source": None}, {"source": network("llama")}))
    with pytest.raises(rs.RheoscopeError, match="no field with the same axes"):
        rs.over_series(first_layer, models)


def test_the_command_line_runs_an_analysis_over_a_series(folder: Path, tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "out.json"), "--csv", str(tmp_path / "tables")]
    outcome = run_rheoscope("analyse", "operators", "--draws", "2", "--series", str(folder), *files)
    assert outcome.status == 0, outcome.err
    assert "checkpoint" in outcome.words
    assert "1000" in outcome.words
    written = json.loads((tmp_path / "out.json").read_text())
    assert "operators" in str(written.keys())
    assert list((tmp_path / "tables").iterdir())


def test_the_atlas_has_the_cards_of_a_series(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(
        "rheoscope.report.atlas_report.run_atlas",
        lambda models, request, files, explain, sql: names.extend(model.view.facts["model"] for model in models),
    )
    assert run_rheoscope("atlas", "default", "--series", str(folder)).status == 0
    assert names == ["the default model", *(f"{folder}/checkpoint-{step}" for step in (0, 200, 1000))]
    outcome = run_rheoscope("atlas")
    assert (outcome.status, "needs models or --series" in outcome.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--adapter", "x"], "--series and --adapter exclude each other"),
        (["--revisions", "step1"], "--series and --revisions exclude each other"),
    ],
)
def test_options_that_a_series_excludes(arguments: list[str], message: str, folder: Path) -> None:
    outcome = run_rheoscope("analyse", "operators", "--series", str(folder), *arguments)
    assert outcome.status == 2
    assert message in " ".join(outcome.err.split())
