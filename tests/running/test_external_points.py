"""Points of another engine as a Trace: equal to the model's own, every layer proved, wrong points refused."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import rheoscope as rs
from rheoscope.shapes import RheoscopeError
from tests.pretrained.cases import gap, model, network, text
from tests.running.streamed_cases import streamed

SEQUENTIAL = ["llama", "gpt2", "gemma3", "neox"]


def hidden_states(name: str) -> tuple[Tensor, ...]:
    """The states of transformers. The last one is after the final norm, if there is one."""
    copied = copy.deepcopy(network(name))  # a model that returns its states keeps hooks of its own
    with torch.no_grad():
        states: tuple[Tensor, ...] = copied.base_model(input_ids=text()[None], output_hidden_states=True).hidden_states
    return states


@pytest.mark.parametrize("name", [*SEQUENTIAL, "bert", "opt_post"])
def test_states_of_transformers_give_the_trace_of_the_model(name: str) -> None:
    own = model(name).trace(text())
    trace = rs.trace_from(hidden_states(name), text(), model(name))
    assert torch.equal(trace.points, own.points)
    assert (trace.steps, trace.tokens, trace.unread_steps) == (own.steps, own.tokens, own.unread_steps)
    assert trace.facts["unproved_layers"] == []
    assert max(trace.facts["layer_errors"]) == 0


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_a_view_fills_in_the_points_after_attention(name: str) -> None:
    own = model(name).trace(text())
    trace = rs.trace_from(hidden_states(name), text(), model(name).view)
    assert gap(trace.points, own.points) <= 1e-5
    assert (trace.steps, trace.unread_steps) == (own.steps, own.unread_steps)
    assert trace.facts["unproved_layers"] == []
    assert gap(trace.displacements(1), own.displacements(1)) <= 1e-5


def after_layers(name: str) -> Tensor:
    trace = model(name).trace(text())
    return torch.stack([trace.points_at(step) for step in trace.steps if step.is_embed or step.is_end_of_layer])


def test_a_file_of_vllm_is_read_with_its_ids(tmp_path: Path) -> None:
    states = after_layers("llama").transpose(0, 1).bfloat16().contiguous()
    save_file(
        {"hidden_states": states[:, 1:].contiguous(), "token_ids": text().clone()}, tmp_path / "layers.safetensors"
    )
    save_file({"hidden_states": states, "token_ids": text().clone()}, tmp_path / "all.safetensors")
    for file, view_or_model in (("all", model("llama").view), ("layers", streamed("llama"))):
        trace = rs.trace_from(tmp_path / f"{file}.safetensors", None, view_or_model)
        assert trace.ids.equal(text())
        assert trace.facts["unproved_layers"] == []
        assert 0 < max(trace.facts["layer_errors"]) <= 2**-5


def test_other_forms_give_the_same_trace() -> None:
    states, view = after_layers("llama"), model("llama").view
    forms: list[Any] = [
        states,
        states.numpy(),
        list(states),
        [x[None] for x in states],
        SimpleNamespace(hidden_states=states),
    ]
    traces = [rs.trace_from(form, text().tolist(), view) for form in forms]
    assert all(torch.equal(trace.points, traces[0].points) for trace in traces)


def test_a_changed_layer_is_marked_unproved() -> None:
    states = after_layers("gemma3")
    states[2] += 0.1 * torch.randn(states[2].shape, generator=torch.Generator().manual_seed(0))
    for view_or_model in (model("gemma3"), model("gemma3").view):
        trace = rs.trace_from(states, text(), view_or_model)
        assert trace.facts["unproved_layers"] == [1, 2]
        assert rs.trajectory(trace).attrs  # analyses read it all the same


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[:-1], "there are 2 points for each token, but this model needs 3 of shape"),
        (lambda x: x[:, :-1], "points have 17 tokens, but there are 18 ids"),
        (lambda x: x[..., :-1], "points have width 31, but the model has width 32"),
        (
            lambda x: x.where(torch.arange(3)[:, None, None] != 1, torch.nan),
            "points hold NaN or infinity in cloud 1 of 3",
        ),
        (lambda x: x[0], "points have shape .*, but this model needs 3"),
        (lambda x: x.long(), "dtype torch.int64, but this model needs 3"),
        (lambda x: 5, "points are int, but this model needs 3"),
        (lambda x: torch.randn_like(x), "these points do not follow from this model: layer 0 is off by"),
        (lambda x: "nowhere.safetensors", "nowhere.safetensors holds no hidden states"),
    ],
)
def test_wrong_points_are_refused_in_one_line(change: Any, message: str) -> None:
    with pytest.raises(RheoscopeError, match=message) as info:
        rs.trace_from(change(after_layers("llama")), text(), model("llama").view)
    assert "\n" not in str(info.value)


def test_a_view_of_a_post_norm_model_needs_the_model() -> None:
    with pytest.raises(RheoscopeError, match=r"type rs.trace_from\(points, ids, model\)"):
        rs.trace_from(after_layers("bert"), text(), model("bert").view)


def test_files_without_ids_and_other_subjects_are_refused(tmp_path: Path) -> None:
    save_file({"hidden_states": after_layers("llama").transpose(0, 1).contiguous()}, tmp_path / "x.safetensors")
    with pytest.raises(RheoscopeError, match="holds no token_ids, so ids are needed"):
        rs.trace_from(tmp_path / "x.safetensors", None, model("llama").view)
    with pytest.raises(RheoscopeError, match="expects a View or a model, got Llama"):
        rs.trace_from(after_layers("llama"), text(), network("llama"))
    with pytest.raises(RheoscopeError, match="token ids must lie between 0 and 39"):
        rs.trace_from(after_layers("llama"), np.full(18, 99), model("llama").view)
