"""The cost of a model, counted on its own weights, equals the formula of its sizes."""

import rheoscope as rs
from rheoscope.space.model_cost import attention_map_bytes, kv_cache_bytes, model_cost
from tests.cases import double


def test_cost_of_the_default_model_equals_the_formula() -> None:
    view = rs.load().view
    hidden = model_cost(view, 1).ffn // (2 * 3 * 6 * 256)
    expected = rs.transformer_cost(6, 256, 64, vocabulary=4096, heads=4, ffn_width=hidden, ffn_matrices=3, causal=False)
    cost = model_cost(view, 64)
    for name in ("parameters", "projections", "ffn", "unembedding", "crossover", "crossover_projections"):
        assert getattr(cost, name) == getattr(expected, name), name
    assert cost.attention == expected.attention * (64 + 1) // (2 * 64)  # causal, with the diagonal
    assert kv_cache_bytes(view, 64) == 2 * 6 * 256 * 4 * 64
    assert attention_map_bytes(view, 64) == 6 * 4 * 64 * 64 * 4


def test_grouped_keys_and_windows_reduce_the_cost() -> None:
    grouped = double("gemma3").view
    assert len(grouped.layer_heads[0].W_K) < grouped.layer_heads[0].n_heads
    cost = model_cost(grouped, 32)
    assert cost.projections == 2 * 32 * sum(
        heads.n_heads * heads.W_Q[0].numel() * 2 + len(heads.W_K) * heads.W_K[0].numel() * 2
        for heads in grouped.layer_heads
    )
    full_attention = sum(2 * 32 * 32 * heads.n_heads * 2 * heads.W_Q.shape[-1] for heads in grouped.layer_heads)
    assert 0 < cost.attention < full_attention * 33 / 64 + 1
