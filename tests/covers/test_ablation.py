"""Tests of ablations: ablated heads give their mean or attend uniformly, and other heads are unchanged."""

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.definition import query_key_positions
from rheoscope.covers.ablation import mean_ablation, mean_outputs, uniform_ablation
from rheoscope.covers.text_batches import included_tokens, next_token_losses
from tests.cases import LENGTH, distance, double, gap, model, text, traced

F64 = torch.float64
SOME = ["gpt2", "llama", "mistral", "qwen3", "gemma3", "opt", "bert", "own", "own_metric", "own_sigmoid", "own_entmax"]
ABLATED = {0: [1], 1: [0, 3]}


@pytest.mark.parametrize("name", SOME)
@torch.no_grad()
def test_mean_outputs_are_means_over_included_tokens(name: str) -> None:
    trace = traced(name, F64)
    is_included = torch.arange(LENGTH) % 3 > 0
    result = mean_outputs(trace, is_included)
    for layer, heads in enumerate(trace.view.layer_heads):
        v = heads.mechanism.value(heads.qkv(trace.layer_input(layer))[2])[0].repeat_interleave(
            heads.n_heads // len(heads.W_V), 0
        )
        for head in range(heads.n_heads):
            expected = (trace.weights(layer, head) @ v[head])[is_included].mean(0)
            assert gap(result[layer][head], expected) <= 1e-5 * max(1.0, float(expected.abs().max()))


def ablated_output(trace, layer: int) -> torch.Tensor:
    """The sum that the ablated heads wrote: the attention output minus that of the other heads on the same points."""
    heads, x = trace.view.layer_heads[layer], trace.layer_input(layer)
    total = trace.points[trace.mid_steps[layer]] - x
    outputs = heads.outputs(x) @ heads.W_O
    other_heads = outputs.sum(0) - sum(outputs[head] for head in ABLATED[layer])
    return total - other_heads - (0 if heads.b_O is None else heads.b_O)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "mistral", "qwen3", "opt", "bert", "own", "own_metric", "own_sigmoid"]
)
@torch.no_grad()
def test_ablated_heads_write_the_mean_or_uniform_attention_and_others_are_unchanged(name: str) -> None:
    network, unedited = double(name), traced(name, F64)
    means = mean_outputs(unedited, unedited.valid_mask())
    for edits, is_uniform in ((mean_ablation(means, ABLATED), False), (uniform_ablation(ABLATED), True)):
        trace = network.trace(text(), edit=edits)
        assert torch.equal(trace.points[0], unedited.points[0])
        for layer, head_indices in ABLATED.items():
            heads, x = network.view.layer_heads[layer], trace.layer_input(layer)
            if is_uniform:
                allowed = heads.mechanism.mask(*query_key_positions(LENGTH, LENGTH)).expand(LENGTH, LENGTH).to(F64)
                v = heads.mechanism.value(heads.qkv(x)[2])[0].repeat_interleave(heads.n_heads // len(heads.W_V), 0)
                uniform_weights = heads.mechanism.normaliser(
                    torch.zeros(1, 1, LENGTH, LENGTH, dtype=F64).masked_fill(allowed == 0, -torch.inf)
                )
                expected = sum(uniform_weights[0, 0] @ v[head] @ heads.W_O[head] for head in head_indices)
                if name != "own_sigmoid":
                    assert gap(uniform_weights[0, 0], allowed / allowed.sum(-1, keepdim=True)) <= 1e-12
            else:
                expected = sum(means[layer][head] @ heads.W_O[head] for head in head_indices).expand_as(x)
            assert distance(ablated_output(trace, layer), expected) <= 2e-5


@torch.no_grad()
def test_ablating_no_head_changes_no_bit() -> None:
    network, trace = model("gpt2"), traced("gpt2")
    assert torch.equal(
        network.run(text(), edit=mean_ablation(mean_outputs(trace, trace.valid_mask()), {})), trace.logits
    )
    assert torch.equal(network.run(text(), edit=uniform_ablation({})), trace.logits)
    assert not torch.equal(network.run(text(), edit=uniform_ablation({0: [1]})), trace.logits)
    assert torch.equal(network.run(text()), trace.logits)


@torch.no_grad()
def test_ablating_a_head_with_constant_output_changes_nothing() -> None:
    """The values of the planted head are only a bias, so every output equals its mean."""

    def plant(module) -> None:
        block = rs.load(module).view.layer_heads[1]
        block.W_V[2] = 0
        block.b_V[2] = 1.5

    from tests.pretrained.cases import changed

    network = changed("gpt2", plant)
    trace = network.trace(text(), logits=True)
    ablated = network.run(text(), edit=mean_ablation(mean_outputs(trace, trace.valid_mask()), {1: [2]}))
    assert gap(ablated, trace.logits) <= 1e-9
    assert gap(network.run(text(), edit=uniform_ablation({1: [2]})), trace.logits) <= 1e-9
    assert gap(network.run(text(), edit=uniform_ablation({1: [1]})), trace.logits) > 1e-4


@torch.no_grad()
def test_losses_of_ablations_equal_those_of_hand_written_edits() -> None:
    network, trace = model("gpt2"), traced("gpt2")
    result = rs.surgery(network, text(), heads=[(1, 2)], M="symmetric")
    mean = network.view.layer_heads[1].outputs(trace.layer_input(1))[2, included_tokens(trace)].mean(0)
    edits = {
        "mean": lambda q, k, v, mechanism: mean.expand(1, 1, LENGTH, -1),
        "uniform": lambda q, k, v, mechanism: v.cumsum(-2) / torch.arange(1, LENGTH + 1)[:, None],
    }
    for name, edit in edits.items():
        expected = float(next_token_losses(network.run(text(), edit={(1, 2): edit}), text()).mean())
        assert float(result.loss_ablated.sel(ablation=name)[0]) == pytest.approx(expected, abs=1e-5)
