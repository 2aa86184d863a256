"""Edits of heads change only those heads, exactly, and are undone on exit."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import Model, Rewrite
from tests.cases import (
    BIDIRECTIONAL,
    KINDS,
    LENGTH,
    POST_NORM,
    distance,
    gap,
    model,
    seen,
    text,
    traced,
)

F64 = torch.float64
with_logits = pytest.mark.parametrize("name", KINDS)


def unchanged(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return mechanism.attend(q, k, v)


def zero(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return torch.zeros_like(q)[..., : v.shape[-1]]


@with_logits
def test_empty_edit_changes_no_bit(name: str) -> None:
    assert torch.equal(model(name).run(text(), edit={}), traced(name).logits)


@with_logits
def test_identity_edit_changes_nothing(name: str) -> None:
    """All heads at once. The kernel may round one head differently from four in the last bit."""
    every = {
        (layer, head): unchanged for layer in range(model(name).view.layers) for head in range(model(name).view.heads)
    }
    assert gap(model(name).run(text(), edit=every), traced(name).logits) <= 1e-5


@with_logits
def test_edit_gets_the_models_queries_keys_values_and_mask(name: str) -> None:
    for layer_index, layer in enumerate(seen(name, F64)[1]):
        recorded: dict[int, tuple[Tensor, ...]] = {}

        def recorder(head: int, into: dict[int, tuple[Tensor, ...]]) -> Any:
            def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
                into[head] = (q, k, v, mechanism.weights(q, k))
                return mechanism.attend(q, k, v)

            return edit

        model(name, F64).run(text(), edit={(layer_index, head): recorder(head, recorded) for head in range(4)})
        for head, (q, k, v, weights) in recorded.items():
            assert q.shape == (1, 1, LENGTH, layer.q.shape[-1])
            assert gap(q[0, 0], layer.q[head]) <= 1e-12
            assert gap(k[0, 0], layer.k[head]) <= 1e-12
            assert gap(v[0, 0], layer.v[head]) <= 1e-12
            assert gap(weights[0, 0], layer.weights[head]) <= 1e-12


@with_logits
def test_zero_ablation_removes_the_heads_displacement(name: str) -> None:
    """The point after attention loses Delta_h (in Gemma before the norm after attention)."""
    loaded_model, trace = model(name, F64), traced(name, F64)
    head, last = 2, loaded_model.view.layers - 1
    block = loaded_model.view.layer_heads[last]
    ablated = loaded_model.run(text(), edit={(last, head): zero})
    if block.output_norm is None:
        hooks = {
            f"L{last}.attn_sum" if name in POST_NORM else f"L{last}.resid_mid": lambda x: (
                x - trace.displacement(last, head)
            )
        }
        if name == "neox":
            hooks = {f"L{last}.resid_post": lambda x: x - trace.displacement(last, head)}
    else:
        with torch.no_grad():
            displacements = block.outputs(trace.layer_input(last)) @ block.W_O
            displacements[head] = 0
            attention_output = block.output_norm.apply(displacements.sum(0) + (0 if block.b_O is None else block.b_O))
        hooks = {f"L{last}.resid_mid": lambda x: (trace.layer_input(last) + attention_output)[None]}
    assert distance(ablated, loaded_model.run(text(), hooks=hooks)) <= 1e-9
    assert gap(ablated, trace.logits) > 1e-3


@with_logits
def test_ablations_of_two_heads_add_up(name: str) -> None:
    """Two heads ablated in one layer remove the sum of their displacements."""
    loaded_model, trace = model(name, F64), traced(name, F64)
    recorded: list[Tensor] = []
    step = "L0.resid_post" if name == "neox" else ("L0.attn_sum" if name in POST_NORM else "L0.resid_mid")

    def record(x: Tensor) -> Tensor:
        recorded.append(x[0].detach().clone())
        return x

    loaded_model.run(text(), edit={(0, 0): zero, (0, 3): zero}, hooks={step: record})
    removed = trace.points_at(step) - recorded[-1]
    if loaded_model.view.layer_heads[0].output_norm is None:
        assert distance(removed, trace.displacement(0, 0) + trace.displacement(0, 3)) <= 1e-9


def test_edits_and_hooks_combine() -> None:
    loaded_model = model("llama")
    shift = torch.linspace(-1, 1, loaded_model.view.width)
    edited_and_hooked = loaded_model.run(text(), edit={(1, 1): zero}, hooks={"L0.resid_post": lambda x: x + shift})
    hooked = loaded_model.run(text(), hooks={"L0.resid_post": lambda x: x + shift})
    edited = loaded_model.run(text(), edit={(1, 1): zero})
    assert gap(edited_and_hooked, hooked) > 1e-3
    assert gap(edited_and_hooked, edited) > 1e-3


def test_weights_of_a_head_can_be_replaced() -> None:
    """Uniform attention over the past, directly and through the mechanism of the edit."""

    def uniform(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        return mechanism.attend(torch.zeros_like(q), k, v)

    def mean(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        return v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1)[:, None]

    assert (
        gap(model("gpt2").run(text(), edit={(0, 1): uniform}), model("gpt2").run(text(), edit={(0, 1): mean})) <= 1e-5
    )


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "opt", "bert", "own", "own_encoder", "own_metric"])
def test_gradients_flow_through_an_edit(name: str) -> None:
    loaded_model = model(name, F64)
    size = torch.ones((), dtype=F64, requires_grad=True)

    def scaled(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        return size * mechanism.attend(q, k, v)

    loss = loaded_model.run(text(), edit={(0, 2): scaled})[-1].square().sum()
    (slope,) = torch.autograd.grad(loss, size)
    with torch.no_grad():
        up, down = (
            loaded_model.run(text(), edit={(0, 2): lambda q, k, v, mechanism, by=by: by * mechanism.attend(q, k, v)})[
                -1
            ]
            .square()
            .sum()
            for by in (1 + 1e-3, 1 - 1e-3)
        )
    assert float(slope) == pytest.approx(float(up - down) / 2e-3, rel=5e-3)


@with_logits
def test_gradients_reach_the_weights_of_the_model(name: str) -> None:
    loaded_model = model(name)
    loaded_model.run(text())[-1].sum().backward()
    try:
        assert all(
            x.grad is not None for block in loaded_model.description.attention_modules for x in block.parameters()
        )
    finally:
        loaded_model.network.zero_grad(set_to_none=True)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "own", "own_encoder"])
@pytest.mark.parametrize("key", [(9, 0), (0, 4), (-1, 0), (0, -1)])
def test_missing_head_raises(name: str, key: tuple[int, int]) -> None:
    with pytest.raises(
        RheoscopeError, match=r"there is no head \(.*\); this model has layers 0 to \d with heads 0 to 3"
    ):
        model(name).run(text(), edit={key: unchanged})


@pytest.mark.parametrize("name", ["gpt2", "own"])
@pytest.mark.parametrize("returned", [None, torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 1, 8)])
def test_edit_with_wrong_output_raises(returned: Any, name: str) -> None:
    with pytest.raises(
        RheoscopeError, match=r"the edit of head \(1, 2\) must return a tensor of shape \(1, 1, 18, 8\)"
    ):
        model(name).run(text(), edit={(1, 2): lambda q, k, v, mechanism: returned})


@with_logits
def test_edits_are_undone_after_an_error(name: str) -> None:
    def fail(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        model(name).run(text(), edit={(0, 1): fail})
    assert torch.equal(model(name).run(text()), traced(name).logits)


def test_mechanism_of_an_edit_has_the_models_mask() -> None:
    """Future keys have weight 0 in causal models only."""
    for name in KINDS:
        recorded: list[Tensor] = []

        def record(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, into: list[Tensor] = recorded) -> Tensor:
            into.append(mechanism.weights(q, k)[0, 0])
            return mechanism.attend(q, k, v)

        model(name).run(text(), edit={(0, 0): record})
        future = float(recorded[0].detach().triu(1).sum())
        assert (future == 0) == (name not in BIDIRECTIONAL)


@pytest.mark.parametrize("name", ["gpt2", "own"])
def test_every_loaded_model_is_a_model(name: str) -> None:
    assert isinstance(model(name), Model)


# Edits of whole layers


@with_logits
def test_identity_layer_edit_changes_no_bit(name: str) -> None:
    every = {layer: lambda q, k, v, mechanism, out: out for layer in range(model(name).view.layers)}
    assert torch.equal(model(name).run(text(), edit=every), traced(name).logits)


@with_logits
def test_layer_edit_equals_edits_of_its_heads(name: str) -> None:
    """The mechanism reproduces the model's outputs, and a layer edit equals edits of single heads."""
    loaded_model = model(name, F64)

    def scaled(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        assert gap(mechanism.attend(q, k, v), out) <= 1e-9
        assert q.shape[1] == out.shape[1] == loaded_model.view.heads
        return (
            out * torch.arange(loaded_model.view.heads)[:, None, None]
        )  # a different factor per head, since a norm may follow

    by_layer = loaded_model.run(text(), edit={1: scaled})
    head_edits = {
        (1, head): lambda q, k, v, mechanism, by=head: mechanism.attend(q, k, v) * by
        for head in range(loaded_model.view.heads)
    }
    assert gap(by_layer, loaded_model.run(text(), edit=head_edits)) <= 1e-8
    assert gap(by_layer, traced(name, F64).logits) > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "own"])
def test_missing_layer_or_wrong_layer_output_raises(name: str) -> None:
    with pytest.raises(RheoscopeError, match=r"there is no layer 9; this model has layers 0 to 1$"):
        model(name).run(text(), edit={9: lambda q, k, v, mechanism, out: out})
    with pytest.raises(
        RheoscopeError, match=r"the edit of layer 1 must return a tensor of shape \(1, 4, 18, 8\), got NoneType"
    ):
        model(name).run(text(), edit={1: lambda q, k, v, mechanism, out: None})
    assert torch.equal(model(name).run(text()), traced(name).logits)


@with_logits
def test_trace_under_an_edit_equals_the_edited_run(name: str) -> None:
    loaded_model = model(name)
    edits: dict[str, Any] = {"edit": {(1, 2): zero}, "hooks": {"L0.resid_post": lambda x: x + 0.5}}
    trace = loaded_model.trace(text(), logits=True, **edits)
    assert torch.equal(trace.logits, loaded_model.run(text(), **edits))
    assert torch.equal(trace.points_at("L0.resid_post"), traced(name).points_at("L0.resid_post") + 0.5)
    assert torch.equal(loaded_model.trace(text()).points, traced(name).points)


@pytest.mark.parametrize("name", ["gpt2", "neox", "bert", "own_branch"])
def test_rewrite_reads_its_layer_input_and_adds_to_the_attention_output(name: str) -> None:
    loaded_model, plain, recorded = model(name), traced(name), {}

    def rewrite(x: Tensor, q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> tuple[Tensor, Tensor]:
        recorded["x"] = x.detach().clone()
        return out, torch.ones_like(x)

    output_step = next(step for step in plain.steps[plain.mid_steps[1] :] if step not in plain.unread_steps)
    rewritten = loaded_model.trace(text(), edit={1: Rewrite(rewrite)})
    assert torch.equal(recorded["x"][0], plain.layer_input(1))
    assert torch.equal(rewritten.layer_input(1), plain.layer_input(1))
    assert gap(rewritten.points_at(output_step), plain.points_at(output_step) + 1) <= 1e-5
    undone = loaded_model.trace(text(), edit={1: Rewrite(rewrite)}, hooks={output_step: lambda x: x - 1})
    assert gap(undone.points, plain.points) <= 1e-5
    same = loaded_model.trace(text(), edit={1: Rewrite(lambda x, q, k, v, mechanism, out: (out, None))})
    assert torch.equal(same.points, plain.points)


def test_rewrite_of_a_missing_layer_raises() -> None:
    for layer in (-1, 9):
        with pytest.raises(RheoscopeError, match=f"there is no layer {layer}; this model has layers 0 to 1"):
            model("gpt2").run(text(), edit={layer: Rewrite(lambda x, q, k, v, mechanism, out: (out, None))})
