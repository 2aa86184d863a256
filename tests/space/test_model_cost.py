"""What a model costs: counted on its own weights it is the formula of its sizes."""

import rheoscope as rs
from rheoscope.space.model_cost import cached_bytes, model_cost, weights_bytes
from tests.cases import double


def test_the_default_model_costs_what_its_sizes_say() -> None:
    view = rs.load().view
    hidden = model_cost(view, 1).ffn // (2 * 3 * 6 * 256)
    wanted = rs.transformer_cost(6, 256, 64, vocabulary=4096, heads=4, ffn_width=hidden, ffn_matrices=3, causal=False)
    found = model_cost(view, 64)
    for name in ("parameters", "projections", "ffn", "unembedding", "crossover", "crossover_projections"):
        assert getattr(found, name) == getattr(wanted, name), name
    assert found.attention == wanted.attention * (64 + 1) // (2 * 64)  # causal: the diagonal is there too
    assert cached_bytes(view, 64) == 2 * 6 * 256 * 4 * 64
    assert weights_bytes(view, 64) == 6 * 4 * 64 * 64 * 4


def test_groups_of_keys_cost_less_and_windows_fewer_pairs() -> None:
    grouped = double("gemma3").view
    assert len(grouped.blocks[0].W_K) < grouped.blocks[0].count
    found = model_cost(grouped, 32)
    assert found.projections == 2 * 32 * sum(
        heads.count * heads.W_Q[0].numel() * 2 + len(heads.W_K) * heads.W_K[0].numel() * 2 for heads in grouped.blocks
    )
    whole = sum(2 * 32 * 32 * heads.count * 2 * heads.W_Q.shape[-1] for heads in grouped.blocks)
    assert 0 < found.attention < whole * 33 / 64 + 1
