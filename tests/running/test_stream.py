"""Recording and editing the stream at every step, in any order, undone on exit."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from rheoscope.running.cuda_side_stream import _run_on_stream
from rheoscope.running.stream import apply_hooks, observe_tap, record_points, taps
from rheoscope.running.thread_hooks import ModuleHook, apply_module_hooks
from rheoscope.shapes import RheoscopeError
from rheoscope.space.step import Step
from tests.cases import KINDS, LENGTH, PARALLEL, POST_NORM, distance, gap, model, text, traced
from tests.pretrained.cases import hooks_left

with_logits = pytest.mark.parametrize("name", KINDS)
FEW = ["gpt2", "llama", "neox", "opt_post", "gemma3", "bert", "own", "own_encoder"]
"""One model for each kind of hook point: sequential and parallel blocks, post-norm, and our own."""


def steps(name: str) -> list[Step]:
    """The steps that the model itself reads."""
    trace = traced(name)
    return [step for step in trace.steps if step not in trace.unread_steps]


def recorded_points(name: str, hooks: dict[Step, Callable[[Tensor], Tensor]]) -> Tensor:
    """The points (p, n, d) of a run with hooks."""
    loaded_model = model(name)
    points = torch.empty(1, len(taps(loaded_model.description)), LENGTH, loaded_model.view.width)
    with apply_hooks(loaded_model.description, hooks), record_points(loaded_model.description, points), torch.no_grad():
        loaded_model.forward_logits(text()[None], None)
    return points[0]


@with_logits
def test_identity_hook_changes_no_bit(name: str) -> None:
    logits = model(name).run(text(), hooks=dict.fromkeys(steps(name), lambda x: x))
    assert torch.equal(logits, traced(name).logits)


@with_logits
def test_models_never_change_tapped_tensors_in_place(name: str) -> None:
    """On a GPU, a side stream copies these tensors and head outputs while the model runs."""
    loaded_model, versions = model(name), list[tuple[Tensor, int]]()

    def record(x: Tensor) -> None:
        versions.append((x, x._version))

    hooks = [observe_tap(tap, record) for tap in taps(loaded_model.description)]
    hooks += [
        ModuleHook(projection, "in", lambda args, kwargs: record(args[0]))
        for projection in loaded_model.description.output_projections
    ]
    with apply_module_hooks(hooks), torch.no_grad():
        loaded_model.forward_logits(text()[None], None)
    assert len(versions) == len(hooks)
    assert all(x._version == version for x, version in versions)


@with_logits
def test_hook_gets_the_points_of_the_trace(name: str) -> None:
    recorded: dict[Step, Tensor] = {}

    def record(step: Step) -> Callable[[Tensor], Tensor]:
        def hook(x: Tensor) -> Tensor:
            recorded[step] = x.detach().clone()
            return x

        return hook

    model(name).run(text(), hooks={step: record(step) for step in steps(name)})
    for step in steps(name):
        assert recorded[step].shape == (1, LENGTH, model(name).view.width)
        assert gap(recorded[step][0], traced(name).points_at(step)) <= 1e-6


@with_logits
def test_hook_changes_the_stream_from_its_step_on(name: str) -> None:
    """Later steps follow from the edited points."""
    shift = torch.linspace(-1, 1, model(name).view.width)
    trace = traced(name)
    for step in steps(name):
        points = recorded_points(name, {step: lambda x: x + shift})
        index = trace.steps.index(step)
        assert torch.equal(points[:index], trace.points[:index])
        assert distance(points[index], trace.points[index] + shift) <= 1e-6
        has_changed = [
            not torch.equal(x, y) for x, y in zip(points[index + 1 :], trace.points[index + 1 :], strict=True)
        ]
        assert all(has_changed)
        assert gap(model(name).run(text(), hooks={step: lambda x: x + shift}), trace.logits) > 1e-3


@with_logits
def test_patching_all_points_of_another_text_gives_its_logits(name: str) -> None:
    """Activation patching: from a step on, the model runs on the other text's points."""
    other = traced(name, seed=1)
    for step in steps(name):
        patched = model(name).run(text(), hooks={step: lambda x, step=step: other.points_at(step)[None]})
        assert gap(patched, other.logits) <= 1e-4, step


def test_patched_token_leaves_earlier_tokens_unchanged() -> None:
    other = traced("llama", seed=1)

    def patch(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 9] = other.points_at("L0.resid_mid")[9]
        return x

    patched = model("llama").run(text(), hooks={"L0.resid_mid": patch})
    assert gap(patched[:9], traced("llama").logits[:9]) <= 1e-6
    assert gap(patched[9:], traced("llama").logits[9:]) > 1e-2


@with_logits
def test_order_of_hooks_does_not_matter(name: str) -> None:
    """An edit of an earlier step reaches a later one in either order."""
    scaled = {step: lambda x, i=i: x * (1.5 + i / 10) for i, step in enumerate(steps(name))}
    forward = model(name).run(text(), hooks=scaled)
    backward = model(name).run(text(), hooks=dict(reversed(scaled.items())))
    assert torch.equal(forward, backward)
    doubled = {
        "L1.resid_mid" if name not in PARALLEL else "L1.resid_post": lambda x: x,
        "L0.resid_post": lambda x: 2 * x,
    }
    assert (
        gap(model(name).run(text(), hooks=doubled), model(name).run(text(), hooks={"L0.resid_post": lambda x: 2 * x}))
        <= 1e-6
    )


@pytest.mark.parametrize("name", FEW)
def test_hook_may_work_in_place(name: str) -> None:
    shift = torch.linspace(-1, 1, model(name).view.width)
    for step in steps(name):
        with torch.no_grad():
            in_place = model(name).run(text(), hooks={step: lambda x: x.add_(shift)})
            out_of_place = model(name).run(text(), hooks={step: lambda x: x + shift})
        assert gap(in_place, out_of_place) <= 1e-5, step
        assert gap(in_place, traced(name).logits) > 1e-3, step


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", FEW)
def test_observing_hook_changes_no_bit(name: str, mode: Any) -> None:
    recorded: list[torch.Tensor] = []

    def observe(x: torch.Tensor) -> torch.Tensor:
        recorded.append(x.clone())
        return x

    with mode():
        logits = model(name).run(text(), hooks=dict.fromkeys(steps(name), observe))
        assert torch.equal(logits, model(name).run(text()))
        shifted = model(name).run(text(), hooks={steps(name)[-1]: lambda x: x.add_(1.0)})
        assert not torch.equal(logits, shifted)
    assert len(recorded) == len(steps(name))


@pytest.mark.parametrize("name", FEW)
def test_gradients_flow_through_a_hook(name: str) -> None:
    """The gradient of a loss with respect to a shift of the points, at zero shift."""
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
def test_hook_with_wrong_output_raises(step: str, returned: Any) -> None:
    with pytest.raises(RheoscopeError, match=rf"the hook at {step} .* return"):
        model("gpt2").run(text(), hooks={step: lambda x: returned})


@pytest.mark.parametrize("name", ["gpt2", "neox", "bert_bare"])
def test_unknown_step_raises(name: str) -> None:
    with pytest.raises(
        RheoscopeError, match=r"there is no step 'L9.resid_mid'; expected one of embed, .*L\d.resid_post"
    ):
        model(name).run(text(), hooks={"embed": lambda x: x, "L9.resid_mid": lambda x: x})
    assert not hooks_left(model(name).network)


def test_midpoint_of_a_parallel_block_cannot_be_edited() -> None:
    with pytest.raises(
        RheoscopeError, match=r"L0.resid_mid of a parallel block cannot be edited, .* edit L0.resid_post instead"
    ):
        model("neox").run(text(), hooks={"L0.resid_mid": lambda x: x})


@pytest.mark.parametrize("name", FEW)
def test_hooks_are_removed_after_an_error(name: str) -> None:
    def fail(x: Tensor) -> Tensor:
        raise KeyError("mine")

    for step in steps(name):
        with pytest.raises(KeyError, match="mine"):
            model(name).run(text(), hooks={"embed": lambda x: 2 * x, step: fail})
        assert not hooks_left(model(name).network)
    assert torch.equal(model(name).run(text()), traced(name).logits)


def test_post_norm_models_have_sums_as_steps() -> None:
    for name in POST_NORM:
        assert {"L0.attn_sum", "L0.mlp_sum"} < set(map(str, traced(name).steps))


def test_points_of_a_block_on_another_device_are_copied_after_those_of_the_side_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    side_stream: Any = SimpleNamespace(device=torch.device("cuda:0"))
    main_stream = SimpleNamespace(wait_stream=lambda stream: order.append("wait" if stream is side_stream else "other"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main_stream)
    _run_on_stream(side_stream, lambda x: order.append("copy"), torch.zeros(2))
    assert order == ["wait", "copy"]
