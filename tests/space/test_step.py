"""A step is a value: its label says it, and is read again."""

import pytest
import torch

from rheoscope.shapes import RheoscopeError
from rheoscope.space.step import EMBED, IN_A_LAYER, Step
from tests.pretrained.cases import model, traced


@pytest.mark.parametrize("step", [EMBED, *(Step(layer, kind) for layer in (0, 12) for kind in IN_A_LAYER)])
def test_a_label_is_read_again(step: Step) -> None:
    assert Step.parse(str(step)) == step
    assert step.is_embed == (step.layer is None)
    assert step.is_end_of_layer == str(step).endswith("resid_post")
    assert step.is_sum == str(step).endswith("_sum")
    assert step.is_cross == ("cross" in str(step))


@pytest.mark.parametrize(
    "label", ["", "L1", "L1.embed", "L01.resid_mid", "L-1.resid_mid", "L1.resid_mid ", "l1.resid_mid"]
)
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(RheoscopeError, match=r"there is no step .*; type embed, or a layer and one of attn_sum"):
        Step.parse(label)


@pytest.mark.parametrize("wrong", [(None, "resid_mid"), (0, "embed"), (-1, "resid_post"), (1, "resid")])
def test_what_is_no_step_cannot_be_made(wrong: tuple[int | None, str]) -> None:
    with pytest.raises(RheoscopeError, match="there is no step"):
        Step(*wrong)


def test_a_step_and_its_label_ask_for_the_same() -> None:
    trace, step = traced("gpt2"), Step(1, "resid_mid")
    assert torch.equal(trace.at(step), trace.at("L1.resid_mid"))
    by_step, by_label = (model("gpt2").run(trace.ids, hooks={at: lambda x: 2 * x}) for at in (step, str(step)))
    assert torch.equal(by_step, by_label)
    assert not torch.equal(by_step, trace.logits)
