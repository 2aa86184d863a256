"""Ablations: a silenced head gives its mean, or looks at all it may see alike; every other head is left alone."""

import pytest
import torch

import rheoscope as rs
from rheoscope.attention.definition import query_key_positions
from rheoscope.covers.ablation import mean_ablation, mean_outputs, uniform_ablation
from rheoscope.covers.text_batches import included_tokens, next_token_losses
from tests.cases import LENGTH, distance, double, gap, model, text, traced

F64 = torch.float64
SOME = ["gpt2", "llama", "mistral", "qwen3", "gemma3", "opt", "bert", "own", "own_metric", "own_sigmoid", "own_entmax"]
CHOSEN = {0: [1], 1: [0, 3]}


@pytest.mark.parametrize("name", SOME)
@torch.no_grad()
def test_means_are_those_of_the_kept_tokens_weighed_by_the_models_own_weights(name: str) -> None:
    trace = traced(name, F64)
    kept = torch.arange(LENGTH) % 3 > 0
    found = mean_outputs(trace, kept)
    for layer, heads in enumerate(trace.view.layer_heads):
        v = heads.mechanism.value(heads.qkv(trace.layer_input(layer))[2])[0].repeat_interleave(
            heads.n_heads // len(heads.W_V), 0
        )
        for head in range(heads.n_heads):
            slow = (trace.weights(layer, head) @ v[head])[kept].mean(0)
            assert gap(found[layer][head], slow) <= 1e-5 * max(1.0, float(slow.abs().max()))


def written(trace, layer: int, head: int) -> torch.Tensor:
    """What one head wrote, by what the rest of its layer wrote on the same points."""
    heads, x = trace.view.layer_heads[layer], trace.layer_input(layer)
    total = trace.points[trace.mid_steps[layer]] - x
    others = heads.outputs(x) @ heads.W_O
    rest = others.sum(0) - sum(others[one] for one in CHOSEN[layer])
    return total - rest - (0 if heads.b_O is None else heads.b_O)


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "mistral", "qwen3", "opt", "bert", "own", "own_metric", "own_sigmoid"]
)
@torch.no_grad()
def test_silenced_heads_give_what_is_said_and_others_what_they_gave(name: str) -> None:
    of, plain = double(name), traced(name, F64)
    means = mean_outputs(plain, plain.valid_mask())
    for edits, uniform in ((mean_ablation(means, CHOSEN), False), (uniform_ablation(CHOSEN), True)):
        trace = of.trace(text(), edit=edits)
        assert torch.equal(trace.points[0], plain.points[0])
        for layer, silenced in CHOSEN.items():
            heads, x = of.view.layer_heads[layer], trace.layer_input(layer)
            if uniform:
                allowed = heads.mechanism.mask(*query_key_positions(LENGTH, LENGTH)).expand(LENGTH, LENGTH).to(F64)
                v = heads.mechanism.value(heads.qkv(x)[2])[0].repeat_interleave(heads.n_heads // len(heads.W_V), 0)
                even = heads.mechanism.normaliser(
                    torch.zeros(1, 1, LENGTH, LENGTH, dtype=F64).masked_fill(allowed == 0, -torch.inf)
                )
                wanted = sum(even[0, 0] @ v[head] @ heads.W_O[head] for head in silenced)
                if name != "own_sigmoid":
                    assert gap(even[0, 0], allowed / allowed.sum(-1, keepdim=True)) <= 1e-12
            else:
                wanted = sum(means[layer][head] @ heads.W_O[head] for head in silenced).expand_as(x)
            assert distance(written(trace, layer, 0), wanted) <= 2e-5


@torch.no_grad()
def test_no_head_silenced_is_the_model_bit_for_bit() -> None:
    of, trace = model("gpt2"), traced("gpt2")
    assert torch.equal(of.run(text(), edit=mean_ablation(mean_outputs(trace, trace.valid_mask()), {})), trace.logits)
    assert torch.equal(of.run(text(), edit=uniform_ablation({})), trace.logits)
    assert not torch.equal(of.run(text(), edit=uniform_ablation({0: [1]})), trace.logits)
    assert torch.equal(of.run(text()), trace.logits)


@torch.no_grad()
def test_a_head_that_gives_every_token_the_same_is_not_missed() -> None:
    """Planted: values that are a bias alone, so that every output is its own mean, whatever the weights."""

    def plant(network) -> None:
        block = rs.load(network).view.layer_heads[1]
        block.W_V[2] = 0
        block.b_V[2] = 1.5

    from tests.pretrained.cases import changed

    of = changed("gpt2", plant)
    trace = of.trace(text(), logits=True)
    silent = of.run(text(), edit=mean_ablation(mean_outputs(trace, trace.valid_mask()), {1: [2]}))
    assert gap(silent, trace.logits) <= 1e-9
    assert gap(of.run(text(), edit=uniform_ablation({1: [2]})), trace.logits) <= 1e-9
    assert gap(of.run(text(), edit=uniform_ablation({1: [1]})), trace.logits) > 1e-4


@torch.no_grad()
def test_the_ablations_by_hand() -> None:
    of, trace = model("gpt2"), traced("gpt2")
    found = rs.surgery(of, text(), heads=[(1, 2)], M="symmetric")
    mean = of.view.layer_heads[1].outputs(trace.layer_input(1))[2, included_tokens(trace)].mean(0)
    edits = {
        "mean": lambda q, k, v, mechanism: mean.expand(1, 1, LENGTH, -1),
        "uniform": lambda q, k, v, mechanism: v.cumsum(-2) / torch.arange(1, LENGTH + 1)[:, None],
    }
    for name, edit in edits.items():
        wanted = float(next_token_losses(of.run(text(), edit={(1, 2): edit}), text()).mean())
        assert float(found.loss_ablated.sel(ablation=name)[0]) == pytest.approx(wanted, abs=1e-5)
