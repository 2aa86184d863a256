"""Heads edited while the model runs: only those heads, exactly, and undone on exit."""

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


def same(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return mechanism.attend(q, k, v)


def nothing(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    return torch.zeros_like(q)[..., : v.shape[-1]]


@with_logits
def test_no_edit_changes_no_bit(name: str) -> None:
    assert torch.equal(model(name).run(text(), edit={}), traced(name).logits)


@with_logits
def test_an_edit_that_changes_nothing_changes_nothing(name: str) -> None:
    """Every head at once. (The last bit is left to the kernel, which may round one head otherwise than four.)"""
    every = {(at, head): same for at in range(model(name).view.layers) for head in range(model(name).view.heads)}
    assert gap(model(name).run(text(), edit=every), traced(name).logits) <= 1e-5


@with_logits
def test_an_edit_is_given_the_models_own_queries_keys_values_and_mask(name: str) -> None:
    for at, layer in enumerate(seen(name, F64)[1]):
        found: dict[int, tuple[Tensor, ...]] = {}

        def look(head: int, into: dict[int, tuple[Tensor, ...]]) -> Any:
            def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
                into[head] = (q, k, v, mechanism.weights(q, k))
                return mechanism.attend(q, k, v)

            return edit

        model(name, F64).run(text(), edit={(at, head): look(head, found) for head in range(4)})
        for head, (q, k, v, weights) in found.items():
            assert q.shape == (1, 1, LENGTH, layer.q.shape[-1])
            assert gap(q[0, 0], layer.q[head]) <= 1e-12
            assert gap(k[0, 0], layer.k[head]) <= 1e-12
            assert gap(v[0, 0], layer.v[head]) <= 1e-12
            assert gap(weights[0, 0], layer.weights[head]) <= 1e-12


@with_logits
def test_zero_ablation_removes_the_heads_displacement(name: str) -> None:
    """By hand: the point after attention loses Delta_h (Gemma: before its norm after attention), the rest follows."""
    of, trace = model(name, F64), traced(name, F64)
    head, last = 2, of.view.layers - 1
    block = of.view.blocks[last]
    ablated = of.run(text(), edit={(last, head): nothing})
    if block.after is None:
        less = {
            f"L{last}.attn_sum" if name in POST_NORM else f"L{last}.resid_mid": lambda x: (
                x - trace.displacement(last, head)
            )
        }
        if name == "neox":
            less = {f"L{last}.resid_post": lambda x: x - trace.displacement(last, head)}
    else:
        with torch.no_grad():
            moved = block.outputs(trace.read_by(last)) @ block.W_O
            moved[head] = 0
            left = block.after.own(moved.sum(0) + (0 if block.b_O is None else block.b_O))
        less = {f"L{last}.resid_mid": lambda x: (trace.read_by(last) + left)[None]}
    assert distance(ablated, of.run(text(), hooks=less)) <= 1e-9
    assert gap(ablated, trace.logits) > 1e-3


@with_logits
def test_editing_one_head_leaves_the_others_alone(name: str) -> None:
    """Of two heads ablated in one layer, each loses its own displacement: they add up."""
    of, trace = model(name, F64), traced(name, F64)
    found: list[Tensor] = []
    step = "L0.resid_post" if name == "neox" else ("L0.attn_sum" if name in POST_NORM else "L0.resid_mid")

    def keep(x: Tensor) -> Tensor:
        found.append(x[0].detach().clone())
        return x

    of.run(text(), edit={(0, 0): nothing, (0, 3): nothing}, hooks={step: keep})
    lost = trace.at(step) - found[-1]
    if of.view.blocks[0].after is None:
        assert distance(lost, trace.displacement(0, 0) + trace.displacement(0, 3)) <= 1e-9


def test_edits_and_hooks_together() -> None:
    of = model("llama")
    shift = torch.linspace(-1, 1, of.view.width)
    both = of.run(text(), edit={(1, 1): nothing}, hooks={"L0.resid_post": lambda x: x + shift})
    one = of.run(text(), hooks={"L0.resid_post": lambda x: x + shift})
    other = of.run(text(), edit={(1, 1): nothing})
    assert gap(both, one) > 1e-3
    assert gap(both, other) > 1e-3


def test_a_heads_weights_can_be_replaced() -> None:
    """Uniform attention over the past, by hand and through the mechanism that the edit is given."""

    def uniform(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        return mechanism.attend(torch.zeros_like(q), k, v)

    def mean(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        return v.cumsum(-2) / torch.arange(1, v.shape[-2] + 1)[:, None]

    assert (
        gap(model("gpt2").run(text(), edit={(0, 1): uniform}), model("gpt2").run(text(), edit={(0, 1): mean})) <= 1e-5
    )


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "opt", "bert", "own", "own_encoder", "own_metric"])
def test_gradients_flow_through_an_edit(name: str) -> None:
    of = model(name, F64)
    size = torch.ones((), dtype=F64, requires_grad=True)

    def scaled(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        return size * mechanism.attend(q, k, v)

    loss = of.run(text(), edit={(0, 2): scaled})[-1].square().sum()
    (slope,) = torch.autograd.grad(loss, size)
    with torch.no_grad():
        up, down = (
            of.run(text(), edit={(0, 2): lambda q, k, v, mechanism, by=by: by * mechanism.attend(q, k, v)})[-1]
            .square()
            .sum()
            for by in (1 + 1e-3, 1 - 1e-3)
        )
    assert float(slope) == pytest.approx(float(up - down) / 2e-3, rel=5e-3)


@with_logits
def test_gradients_reach_the_weights_of_the_model(name: str) -> None:
    of = model(name)
    of.run(text())[-1].sum().backward()
    try:
        assert all(x.grad is not None for block in of.description.attentions for x in block.parameters())
    finally:
        of.network.zero_grad(set_to_none=True)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "own", "own_encoder"])
@pytest.mark.parametrize("at", [(9, 0), (0, 4), (-1, 0), (0, -1)])
def test_an_unknown_head_is_refused(name: str, at: tuple[int, int]) -> None:
    with pytest.raises(
        RheoscopeError, match=r"there is no head \(.*\); this model has layers 0 to \d with heads 0 to 3"
    ):
        model(name).run(text(), edit={at: same})


@pytest.mark.parametrize("name", ["gpt2", "own"])
@pytest.mark.parametrize("returned", [None, torch.zeros(1, 1, 3, 8), torch.zeros(1, 1, 1, 8)])
def test_an_edit_that_returns_no_output_is_refused(returned: Any, name: str) -> None:
    with pytest.raises(RheoscopeError, match=r"the edit of head \(1, 2\) must return .* \(1, 1, 18, 8\)"):
        model(name).run(text(), edit={(1, 2): lambda q, k, v, mechanism: returned})


@with_logits
def test_everything_is_undone_even_after_an_error(name: str) -> None:
    def fail(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        model(name).run(text(), edit={(0, 1): fail})
    assert torch.equal(model(name).run(text()), traced(name).logits)


def test_edits_keep_the_direction_of_time() -> None:
    """The mechanism that an edit is given carries the model's own mask."""
    for name in KINDS:
        found: list[Tensor] = []

        def look(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, into: list[Tensor] = found) -> Tensor:
            into.append(mechanism.weights(q, k)[0, 0])
            return mechanism.attend(q, k, v)

        model(name).run(text(), edit={(0, 0): look})
        future = float(found[0].detach().triu(1).sum())
        assert (future == 0) == (name not in BIDIRECTIONAL)


@pytest.mark.parametrize("name", ["gpt2", "own"])
def test_whoever_made_it_it_is_a_model(name: str) -> None:
    assert isinstance(model(name), Model)


# Edits of whole layers


@with_logits
def test_a_layer_edited_as_it_is_changes_no_bit(name: str) -> None:
    every = {at: lambda q, k, v, mechanism, out: out for at in range(model(name).view.layers)}
    assert torch.equal(model(name).run(text(), edit=every), traced(name).logits)


@with_logits
def test_a_layer_is_given_what_its_heads_are(name: str) -> None:
    """Outputs by the mechanism are the model's own; heads edited together are heads edited one by one."""
    of = model(name, F64)

    def scaled(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        assert gap(mechanism.attend(q, k, v), out) <= 1e-9
        assert q.shape[1] == out.shape[1] == of.view.heads
        return out * torch.arange(of.view.heads)[:, None, None]  # each head another: a norm may follow

    together = of.run(text(), edit={1: scaled})
    single = {
        (1, head): lambda q, k, v, mechanism, by=head: mechanism.attend(q, k, v) * by for head in range(of.view.heads)
    }
    assert gap(together, of.run(text(), edit=single)) <= 1e-8
    assert gap(together, traced(name, F64).logits) > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "own"])
def test_a_layer_that_is_not_there_or_gives_no_outputs_is_refused(name: str) -> None:
    with pytest.raises(RheoscopeError, match=r"there is no layer 9; this model has layers 0 to 1 with heads 0 to 3"):
        model(name).run(text(), edit={9: lambda q, k, v, mechanism, out: out})
    with pytest.raises(
        RheoscopeError, match=r"the edit of layer 1 must return its outputs \(1, 4, 18, 8\), got NoneType"
    ):
        model(name).run(text(), edit={1: lambda q, k, v, mechanism, out: None})
    assert torch.equal(model(name).run(text()), traced(name).logits)


@with_logits
def test_points_under_an_edit_are_those_of_the_run(name: str) -> None:
    of = model(name)
    changes: dict[str, Any] = {"edit": {(1, 2): nothing}, "hooks": {"L0.resid_post": lambda x: x + 0.5}}
    trace = of.trace(text(), logits=True, **changes)
    assert torch.equal(trace.logits, of.run(text(), **changes))
    assert torch.equal(trace.at("L0.resid_post"), traced(name).at("L0.resid_post") + 0.5)
    assert torch.equal(of.trace(text()).points, traced(name).points)


@pytest.mark.parametrize("name", ["gpt2", "neox", "bert", "own_branch"])
def test_a_rewrite_reads_the_points_of_its_layer_and_adds_to_what_attention_wrote(name: str) -> None:
    of, plain, found = model(name), traced(name), {}

    def change(x: Tensor, q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> tuple[Tensor, Tensor]:
        found["x"] = x.detach().clone()
        return out, torch.ones_like(x)

    written = next(step for step in plain.steps[plain.middle[1] :] if step not in plain.not_read)
    after = of.trace(text(), edit={1: Rewrite(change)})
    assert torch.equal(found["x"][0], plain.read_by(1))
    assert torch.equal(after.read_by(1), plain.read_by(1))
    assert gap(after.at(written), plain.at(written) + 1) <= 1e-5
    seen = of.trace(text(), edit={1: Rewrite(change)}, hooks={written: lambda x: x - 1})
    assert gap(seen.points, plain.points) <= 1e-5
    same = of.trace(text(), edit={1: Rewrite(lambda x, q, k, v, mechanism, out: (out, None))})
    assert torch.equal(same.points, plain.points)


def test_a_rewrite_of_a_layer_that_is_not_there_is_refused() -> None:
    for layer in (-1, 9):
        with pytest.raises(RheoscopeError, match=f"there is no layer {layer}; this model has layers 0 to 1"):
            model("gpt2").run(text(), edit={layer: Rewrite(lambda x, q, k, v, mechanism, out: (out, None))})
