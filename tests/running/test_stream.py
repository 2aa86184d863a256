"""Watching and changing the stream: every labelled step, in any order, undone on exit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.running.stream import changing, looking, taps, watching
from rheoscope.running.thread_hooks import Ask, asking
from rheoscope.shapes import RheoscopeError
from rheoscope.space.step import Step
from tests.cases import KINDS, LENGTH, PARALLEL, POST_NORM, distance, gap, model, text, traced
from tests.pretrained.cases import hooks_left

with_logits = pytest.mark.parametrize("name", KINDS)
FEW = ["gpt2", "llama", "neox", "opt_post", "gemma3", "bert", "own", "own_encoder"]
"""A model for each place that a hook is put at: blocks in a row, parallel, norms after their sums, and our own."""


def steps(name: str) -> list[Step]:
    """The steps that the model itself reads."""
    trace = traced(name)
    return [step for step in trace.steps if step not in trace.not_read]


def watched(name: str, hooks: dict[Step, Callable[[Tensor], Tensor]]) -> Tensor:
    """The points (p, n, d) of a run with hooks."""
    of = model(name)
    points = torch.empty(1, len(taps(of.description)), LENGTH, of.view.width)
    with changing(of.description, hooks), watching(of.description, points), torch.no_grad():
        of.call(text()[None], None)
    return points[0]


@with_logits
def test_a_hook_that_changes_nothing_changes_no_bit(name: str) -> None:
    same = model(name).run(text(), hooks=dict.fromkeys(steps(name), lambda x: x))
    assert torch.equal(same, traced(name).logits)


@with_logits
def test_no_model_changes_in_place_what_passed_a_tap(name: str) -> None:
    """A GPU copies it, and keeps what heads gave, beside the model."""
    of, seen = model(name), list[tuple[Tensor, int]]()

    def keep(x: Tensor) -> None:
        seen.append((x, x._version))

    asks = [looking(tap, keep) for tap in taps(of.description)]
    asks += [Ask(one, "in", lambda args, kwargs: keep(args[0])) for one in of.description.projections]
    with asking(asks), torch.no_grad():
        of.call(text()[None], None)
    assert len(seen) == len(asks)
    assert all(x._version == version for x, version in seen)


@with_logits
def test_a_hook_sees_the_points_of_the_trace(name: str) -> None:
    found: dict[Step, Tensor] = {}

    def keep(step: Step) -> Callable[[Tensor], Tensor]:
        def hook(x: Tensor) -> Tensor:
            found[step] = x.detach().clone()
            return x

        return hook

    model(name).run(text(), hooks={step: keep(step) for step in steps(name)})
    for step in steps(name):
        assert found[step].shape == (1, LENGTH, model(name).view.width)
        assert gap(found[step][0], traced(name).at(step)) <= 1e-6


@with_logits
def test_a_hook_at_every_step_puts_its_points_into_the_stream(name: str) -> None:
    """What follows a changed step is what the model makes of the changed points."""
    shift = torch.linspace(-1, 1, model(name).view.width)
    trace = traced(name)
    for step in steps(name):
        points = watched(name, {step: lambda x: x + shift})
        at = trace.steps.index(step)
        assert torch.equal(points[:at], trace.points[:at])
        assert distance(points[at], trace.points[at] + shift) <= 1e-6
        moved = [not torch.equal(x, y) for x, y in zip(points[at + 1 :], trace.points[at + 1 :], strict=True)]
        assert all(moved)
        assert gap(model(name).run(text(), hooks={step: lambda x: x + shift}), trace.logits) > 1e-3


@with_logits
def test_the_whole_of_another_text_patched_in_gives_its_logits(name: str) -> None:
    """Activation patching: from a step on, the model runs on the other text's points, whatever it read before."""
    other = traced(name, seed=1)
    for step in steps(name):
        patched = model(name).run(text(), hooks={step: lambda x, at=step: other.at(at)[None]})
        assert gap(patched, other.logits) <= 1e-4, step


def test_one_patched_token_leaves_the_past_alone() -> None:
    other = traced("llama", seed=1)

    def patch(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 9] = other.at("L0.resid_mid")[9]
        return x

    patched = model("llama").run(text(), hooks={"L0.resid_mid": patch})
    assert gap(patched[:9], traced("llama").logits[:9]) <= 1e-6
    assert gap(patched[9:], traced("llama").logits[9:]) > 1e-2


@with_logits
def test_hooks_work_in_any_order(name: str) -> None:
    """A change of an earlier step reaches a later one, whichever was named first."""
    added = {step: lambda x, at=at: x * (1.5 + at / 10) for at, step in enumerate(steps(name))}
    forth = model(name).run(text(), hooks=added)
    back = model(name).run(text(), hooks=dict(reversed(added.items())))
    assert torch.equal(forth, back)
    doubled = {
        "L1.resid_mid" if name not in PARALLEL else "L1.resid_post": lambda x: x,
        "L0.resid_post": lambda x: 2 * x,
    }
    assert (
        gap(model(name).run(text(), hooks=doubled), model(name).run(text(), hooks={"L0.resid_post": lambda x: 2 * x}))
        <= 1e-6
    )


@pytest.mark.parametrize("name", FEW)
def test_a_hook_may_work_in_place(name: str) -> None:
    shift = torch.linspace(-1, 1, model(name).view.width)
    for step in steps(name):
        with torch.no_grad():
            inside = model(name).run(text(), hooks={step: lambda x: x.add_(shift)})
            outside = model(name).run(text(), hooks={step: lambda x: x + shift})
        assert gap(inside, outside) <= 1e-5, step
        assert gap(inside, traced(name).logits) > 1e-3, step


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", FEW)
def test_a_hook_that_only_looks_changes_no_bit(name: str, mode: Any) -> None:
    seen: list[torch.Tensor] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.clone())
        return x

    with mode():
        found = model(name).run(text(), hooks=dict.fromkeys(steps(name), look))
        assert torch.equal(found, model(name).run(text()))
        shifted = model(name).run(text(), hooks={steps(name)[-1]: lambda x: x.add_(1.0)})
        assert not torch.equal(found, shifted)
    assert len(seen) == len(steps(name))


@pytest.mark.parametrize("name", FEW)
def test_gradients_flow_through_a_hook(name: str) -> None:
    """Also at a point where nothing is added yet: the gradient of a loss with respect to the points."""
    for step in steps(name):
        nudge = torch.zeros(model(name).view.width, requires_grad=True)
        loss = model(name).run(text(), hooks={step: lambda x, by=nudge: x + by})[-1].square().sum()
        (slope,) = torch.autograd.grad(loss, nudge)
        direction = torch.linspace(-1, 1, len(nudge)) / 1000
        with torch.no_grad():
            up, down = (
                model(name).run(text(), hooks={step: lambda x, by=by: x + by})[-1].double().square().sum()
                for by in (direction, -direction)
            )
        assert float((up - down) / 2) == pytest.approx(
            float(slope.double() @ direction.double()), rel=2e-2, abs=2e-3
        ), step


@pytest.mark.parametrize("returned", [None, 3.0, torch.zeros(1, 1, 1)])
@pytest.mark.parametrize("step", ["embed", "L0.resid_mid", "L1.resid_post"])
def test_a_hook_that_returns_no_points_is_refused(step: str, returned: Any) -> None:
    with pytest.raises(RheoscopeError, match=rf"the hook at {step} .* return"):
        model("gpt2").run(text(), hooks={step: lambda x: returned})


@pytest.mark.parametrize("name", ["gpt2", "neox", "bert_bare"])
def test_an_unknown_step_is_refused(name: str) -> None:
    with pytest.raises(RheoscopeError, match=r"there is no step 'L9.resid_mid'; type one of embed, .*L\d.resid_post"):
        model(name).run(text(), hooks={"embed": lambda x: x, "L9.resid_mid": lambda x: x})
    assert not hooks_left(model(name).network)


def test_the_midpoint_of_a_parallel_block_is_no_point_to_change() -> None:
    with pytest.raises(RheoscopeError, match=r"L0.resid_mid is no point that a parallel block reads; change"):
        model("neox").run(text(), hooks={"L0.resid_mid": lambda x: x})


@pytest.mark.parametrize("name", FEW)
def test_everything_is_undone_even_after_an_error(name: str) -> None:
    def fail(x: Tensor) -> Tensor:
        raise KeyError("mine")

    for step in steps(name):
        with pytest.raises(KeyError, match="mine"):
            model(name).run(text(), hooks={"embed": lambda x: 2 * x, step: fail})
        assert not hooks_left(model(name).network)
    assert torch.equal(model(name).run(text()), traced(name).logits)


def test_post_norm_models_have_their_sums_as_steps() -> None:
    for name in POST_NORM:
        assert {"L0.attn_sum", "L0.mlp_sum"} < set(map(str, traced(name).steps))
