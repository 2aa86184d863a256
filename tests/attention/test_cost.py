"""FLOP counts equal torch's counter, and crossover lengths equal theory."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import rheoscope as rs
from rheoscope.attention.definition import reference_attention

MECHANISM_NAMES = [
    "scaled_dot",
    "bilinear",
    "additive",
    "cosine",
    "relation",
    "symmetric_relation",
    "kernel_polynomial",
    "relu",
]


@pytest.mark.parametrize("name", MECHANISM_NAMES)
def test_flops_equal_the_counter_of_torch(name: str) -> None:
    entry = rs.mechanisms()[name]
    mechanism = entry(**({"dim": 6} if entry.needs_dim else {}))
    q, k, v = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 6), torch.randn(2, 2, 7, 3)
    with FlopCounterMode(display=False) as counter:
        reference_attention(mechanism, q, k, v)
    assert rs.attention_cost(mechanism, q.shape, k.shape, 3).flops == counter.get_total_flops()


@pytest.mark.parametrize("name", ["bilinear", "additive", "relation"])
def test_flops_with_different_query_and_key_widths(name: str) -> None:
    mechanism = rs.mechanism(name, dim=6, key_dim=4)
    q, k, v = torch.randn(2, 4, 5, 6), torch.randn(2, 2, 7, 4), torch.randn(2, 2, 7, 3)
    with FlopCounterMode(display=False) as counter:
        reference_attention(mechanism, q, k, v)
    cost = rs.attention_cost(mechanism, q.shape, k.shape, 3)
    assert cost.flops == counter.get_total_flops()
    assert cost.bytes_io == 4 * (q.numel() + k.numel() + v.numel() + 2 * 4 * 5 * 3)


def test_metric_costs_as_much_as_its_dot_product() -> None:
    shape = (1, 2, 8, 4)
    metric, dot = (rs.attention_cost(rs.mechanism(name), shape, shape).flops for name in ("metric", "scaled_dot"))
    assert metric == dot


def test_linear_attention_costs_grow_linearly() -> None:
    flops = [rs.attention_cost(rs.mechanism("linear"), (1, 1, n, 8), (1, 1, n, 8)).flops for n in (100, 200)]
    assert flops[1] == 2 * flops[0]


def test_causal_mask_halves_the_pairwise_flops() -> None:
    shape, plain = (1, 1, 64, 8), rs.mechanism("scaled_dot")
    full, causal = (rs.attention_cost(plain.with_mask(mask), shape, shape).flops for mask in (None, "causal"))
    assert causal == pytest.approx(full * (64 + 1) / (2 * 64))


@pytest.mark.parametrize(("matrices", "crossover"), [(2, 6), (3, 8)])
def test_crossover_lengths_equal_theory(matrices: int, crossover: int) -> None:
    cost = rs.transformer_cost(layers=3, width=32, tokens=32 * crossover, heads=4, ffn_matrices=matrices, causal=False)
    assert cost.crossover == 32 * crossover
    assert cost.attention == cost.projections + cost.ffn
    assert cost.crossover_projections == 2 * 32


def test_training_flops_are_six_parameters_per_token_plus_attention() -> None:
    layers, width, tokens = 4, 64, 100
    cost = rs.transformer_cost(layers, width, tokens, heads=4, causal=False)
    assert cost.training == 6 * cost.parameters * tokens + 12 * layers * tokens**2 * width


def test_forward_flops_equal_a_torch_encoder_layer() -> None:
    width, tokens = 16, 10
    layer = torch.nn.TransformerEncoderLayer(width, 4, dim_feedforward=4 * width, batch_first=True)
    with FlopCounterMode(display=False) as counter:
        layer.train()(torch.randn(1, tokens, width))
    cost = rs.transformer_cost(1, width, tokens, heads=4, causal=False)
    assert counter.get_total_flops() == cost.forward


def test_indivisible_widths_are_rejected() -> None:
    with pytest.raises(rs.RheoscopeError, match="width must be a multiple of heads"):
        rs.transformer_cost(layers=1, width=10, tokens=4, heads=3)
