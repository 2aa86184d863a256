"""A Trace: its points by label, saving and opening, and errors."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from tests.cases import EVERY, LENGTH, WITH_LOGITS, model, traced

every = pytest.mark.parametrize("name", EVERY)


@every
def test_saved_trace_opens_bit_for_bit(name: str, tmp_path: Path) -> None:
    trace = traced(name)
    again = Trace.open(trace.save(tmp_path / "deep" / "er"), model(name).view)
    assert torch.equal(again.points, trace.points)
    assert torch.equal(again.ids, trace.ids)
    assert (again.logits is None) == (name not in WITH_LOGITS)
    if name in WITH_LOGITS:
        assert torch.equal(again.logits, trace.logits)
    for field in ("steps", "tokens", "text", "input_steps", "mid_steps", "unread_steps"):
        assert getattr(again, field) == getattr(trace, field), field
    assert again.facts["weights"] == trace.facts["weights"]
    assert torch.equal(again.weights(1, 2), trace.weights(1, 2))
    assert torch.equal(again.displacements(1), trace.displacements(1))


def test_saved_trace_contains_its_provenance(tmp_path: Path) -> None:
    metadata = json.loads((traced("gpt2").save(tmp_path) / "trace.json").read_text())
    assert metadata["facts"]["type"] == "gpt2"
    assert metadata["facts"]["certificate"].startswith("exact on 8 tokens")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["trace.json", "trace.safetensors"]


def test_saving_again_replaces_the_old_trace(tmp_path: Path) -> None:
    traced("gpt2").save(tmp_path)
    other = model("gpt2").trace([5, 6, 7])
    assert torch.equal(Trace.open(other.save(tmp_path), model("gpt2").view).points, other.points)


def test_view_of_another_model_raises(tmp_path: Path) -> None:
    traced("gpt2").save(tmp_path)
    with pytest.raises(RheoscopeError, match=r"this Trace comes from weights .*, but the View has weights .*"):
        Trace.open(tmp_path, model("gpt2_by_depth").view)


@pytest.mark.parametrize("missing", ["trace.json", "trace.safetensors"])
def test_missing_files_raise(missing: str, tmp_path: Path) -> None:
    traced("gpt2").save(tmp_path)
    (tmp_path / missing).unlink()
    assert_open_raises(tmp_path)


def test_empty_directory_raises(tmp_path: Path) -> None:
    assert_open_raises(tmp_path)
    assert_open_raises(tmp_path / "nowhere")


@pytest.mark.parametrize("file", ["trace.json", "trace.safetensors"])
@pytest.mark.parametrize("kept_bytes", [0, 20, -10])
def test_truncated_files_raise(file: str, kept_bytes: int, tmp_path: Path) -> None:
    traced("gpt2").save(tmp_path)
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content[:kept_bytes])
    assert_open_raises(tmp_path)


def test_other_json_files_raise(tmp_path: Path) -> None:
    traced("gpt2").save(tmp_path)
    (tmp_path / "trace.json").write_text('{"steps": []}')
    assert_open_raises(tmp_path)


def assert_open_raises(directory: Path) -> None:
    with pytest.raises(RheoscopeError, match=r"holds no saved Trace: .*; type trace.save\('") as error:
        Trace.open(directory, model("gpt2").view)
    assert "\n" not in str(error.value)


def test_points_by_label() -> None:
    trace = traced("gpt2")
    assert torch.equal(trace.points_at("embed"), trace.points[0])
    assert torch.equal(trace.points_at("L1.resid_mid"), trace.points[3])
    assert torch.equal(trace.points_at("L1.resid_post"), trace.points[-1])
    assert torch.equal(trace.layer_input(1), trace.points_at("L0.resid_post"))
    assert len(trace) == LENGTH


def test_missing_step_raises() -> None:
    with pytest.raises(
        RheoscopeError,
        match=r"there is no step 'L7.resid_mid'; expected one of embed, L0.resid_mid, .*, …, L1.resid_post",
    ):
        traced("gpt2").points_at("L7.resid_mid")


def test_missing_layers_and_heads_raise() -> None:
    trace = traced("gpt2")
    for method in (trace.layer_input, trace.displacements, trace.bias):
        for layer in (-1, 2):
            with pytest.raises(RheoscopeError, match=rf"there is no layer {layer}; this model has layers 0 to 1"):
                method(layer)
    for method in (trace.weights, trace.scores, trace.displacement):
        with pytest.raises(RheoscopeError, match="there is no layer 2"):
            method(2, 0)
        for head in (-1, 4):
            with pytest.raises(RheoscopeError, match=rf"there is no head {head} in layer 0"):
                method(0, head)


@every
def test_shapes_and_gradients_of_recomputed_tensors(name: str) -> None:
    trace = traced(name)
    assert trace.weights(0, 1).shape == trace.scores(0, 1).shape == (LENGTH, LENGTH)
    assert trace.displacement(0, 1).shape == trace.bias(0).shape == (LENGTH, 32)
    assert trace.displacements(0).shape == (4, LENGTH, 32)
    assert not trace.points.requires_grad
    assert not trace.displacements(0).requires_grad
    assert not trace.bias(0).requires_grad
    assert not trace.weights(0, 0).requires_grad


def test_tokens_without_a_tokenizer_are_ids() -> None:
    trace = model("gpt2").trace([5, 6, 7])
    assert trace.tokens == ["5", "6", "7"]
    assert trace.text == ""
    assert trace.ids.tolist() == [5, 6, 7]


def test_valid_tokens_are_those_that_are_not_massive() -> None:
    trace = traced("gpt2")
    points = trace.points.clone()
    points[1, [2, 5]] *= 100
    with_massive = replace(trace, points=points)
    assert (~with_massive.valid_mask()).nonzero()[:, 0].tolist() == with_massive.massive_tokens() == [2, 5]
    assert bool(with_massive.valid_mask(keep_massive=True).all())
    assert int(with_massive.valid_mask(min_tokens=LENGTH - 2).sum()) == LENGTH - 2
    with pytest.raises(RheoscopeError, match=rf"at least {LENGTH - 1} tokens that are not massive, got {LENGTH - 2}; "):
        with_massive.valid_mask(min_tokens=LENGTH - 1)


@pytest.mark.parametrize("name", ["trace.json", "trace.safetensors"])
def test_foreign_files_are_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    trace = traced(EVERY[0])
    with pytest.raises(RheoscopeError, match=f"{name} exists and was not written by Rheoscope"):
        trace.save(tmp_path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "mine")]
    trace.save(tmp_path / "free")
    trace.save(tmp_path / "free")
