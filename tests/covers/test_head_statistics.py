"""Head statistics equal those of the dense weights."""

import pytest
import torch

import rheoscope as rs
from tests.cases import default, double
from tests.pretrained.cases import text


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_statistics_equal_those_of_the_dense_weights(name: str) -> None:
    trace = double(name).trace(text(0, 14))
    result, n = rs.head_statistics(trace), len(trace)
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    for layer in range(trace.view.layers):
        for head in range(trace.view.heads):
            weights = trace.weights(layer, head)
            expected = {
                "entropy": torch.special.entr(weights).sum(-1).mean(),
                "first_token_weight": weights[:, 0].mean(),
                "max_weight": weights.amax(-1).mean(),
                "attention_distance": (weights * distance).sum(-1).mean(),
                "max_received_share": weights.sum(0).max() / n,
            }
            for field, value in expected.items():
                assert float(result[field][layer, head]) == pytest.approx(float(value), rel=1e-6, abs=1e-12), field


def test_the_mean_over_a_text_is_the_mean_over_its_tokens() -> None:
    trace = default().trace("The keys to the cabinet are on the table")
    assert float(rs.head_statistics(trace).entropy[2, 1]) == pytest.approx(
        float(trace.statistics(2)["entropy"][1].mean()), rel=1e-6
    )
