"""Steps and their labels."""

import pytest
import torch

from rheoscope.shapes import RheoscopeError
from rheoscope.space.step import EMBED, LAYER_STEPS, Step
from tests.pretrained.cases import model, traced


@pytest.mark.parametrize("step", [EMBED, *(Step(layer, kind) for layer in (0, 12) for kind in LAYER_STEPS)])
def test_label_parses_to_its_step(step: Step) -> None:
    assert Step.parse(str(step)) == step
    assert step.is_embed == (step.layer is None)
    assert step.is_end_of_layer == str(step).endswith("resid_post")
    assert step.is_sum == str(step).endswith("_sum")
    assert step.is_cross == ("cross" in str(step))


@pytest.mark.parametrize(
    "label", ["", "L1", "L1.embed", "L01.resid_mid", "L-1.resid_mid", "L1.resid_mid ", "l1.resid_mid"]
)
def test_invalid_label_raises(label: str) -> None:
    with pytest.raises(RheoscopeError, match=r"there is no step .*; expected embed, or a layer and one of attn_sum"):
        Step.parse(label)


@pytest.mark.parametrize("arguments", [(None, "resid_mid"), (0, "embed"), (-1, "resid_post"), (1, "resid")])
def test_invalid_step_raises(arguments: tuple[int | None, str]) -> None:
    with pytest.raises(RheoscopeError, match="there is no step"):
        Step(*arguments)


def test_step_and_label_select_the_same_points() -> None:
    trace, step = traced("gpt2"), Step(1, "resid_mid")
    assert torch.equal(trace.points_at(step), trace.points_at("L1.resid_mid"))
    by_step, by_label = (model("gpt2").run(trace.ids, hooks={key: lambda x: 2 * x}) for key in (step, str(step)))
    assert torch.equal(by_step, by_label)
    assert not torch.equal(by_step, trace.logits)
