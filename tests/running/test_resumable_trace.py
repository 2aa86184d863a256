"""Traces that continue after an interruption: the same points, and no finished layer is computed again."""

from pathlib import Path
from typing import Any

import pytest
import torch

import rheoscope as rs
from rheoscope.running.resumable_trace import layer_file
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import WITH_LOGITS, text
from tests.running.streamed_cases import FAMILIES, resident, streamed

TEXTS = [text(0), text(1, 7)]


@pytest.mark.parametrize("load", [resident, streamed])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_interrupted_trace_continues_with_the_same_points(name: str, load: Any, tmp_path: Path) -> None:
    model, logits = load(name), name in WITH_LOGITS
    expected = model.trace(TEXTS, logits=logits)
    for n_stored in (model.view.layers, 1, 0):
        traces = rs.resumable_trace(model, TEXTS, tmp_path, logits=logits)
        assert torch.equal(traces.points, expected.points)
        assert not logits or torch.equal(traces.logits, expected.logits)
        for layer in range(n_stored, model.view.layers):
            layer_file(tmp_path, layer).unlink()


def test_finished_layers_are_not_computed_again(tmp_path: Path) -> None:
    model, computed = resident("llama"), []
    rs.resumable_trace(model, TEXTS, tmp_path)
    layer_file(tmp_path, 1).unlink()
    layers = model.network.model.layers
    handles = [layer.mlp.register_forward_hook(lambda *call, i=i: computed.append(i)) for i, layer in enumerate(layers)]
    rs.resumable_trace(model, TEXTS, tmp_path)
    for handle in handles:
        handle.remove()
    assert computed == [1]


def test_an_interruption_leaves_the_finished_layers(tmp_path: Path) -> None:
    model = resident("llama")

    def interrupt(*call: Any) -> None:
        raise KeyboardInterrupt

    handle = model.network.model.layers[1].mlp.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        rs.resumable_trace(model, TEXTS, tmp_path)
    handle.remove()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["layer_0000.safetensors", "trace.json"]


def test_a_folder_of_other_texts_or_another_model_is_refused(tmp_path: Path) -> None:
    rs.resumable_trace(resident("llama"), TEXTS, tmp_path)
    with pytest.raises(RheoscopeError, match="holds layers of a run with other texts; choose another folder"):
        rs.resumable_trace(resident("llama"), [text(2)], tmp_path)
    with pytest.raises(RheoscopeError, match="holds layers of a run with other weights"):
        rs.resumable_trace(resident("gpt2"), TEXTS, tmp_path)


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    rs.resumable_trace(resident("llama"), TEXTS, tmp_path)
    layer_file(tmp_path, 0).write_bytes(b"no tensors")
    with pytest.raises(RheoscopeError, match=r"layer_0000.safetensors is damaged .*; delete it and run again"):
        rs.resumable_trace(resident("llama"), TEXTS, tmp_path)
    with pytest.raises(RheoscopeError, match="texts must be a list"):
        rs.resumable_trace(resident("llama"), "w3 w4", tmp_path)
