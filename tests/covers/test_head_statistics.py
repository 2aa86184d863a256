"""How sharply and how far heads look: against the whole table of weights."""

import pytest
import torch

import rheoscope as rs
from tests.cases import default, double
from tests.pretrained.cases import text


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_it_equals_the_dense_weights(name: str) -> None:
    trace = double(name).trace(text(0, 14))
    found, n = rs.head_statistics(trace), len(trace)
    far = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    for layer in range(trace.view.layers):
        for head in range(trace.view.heads):
            weights = trace.weights(layer, head)
            expected = {
                "entropy": torch.special.entr(weights).sum(-1).mean(),
                "first": weights[:, 0].mean(),
                "top": weights.amax(-1).mean(),
                "distance": (weights * far).sum(-1).mean(),
                "received": weights.sum(0).max() / n,
            }
            for field, value in expected.items():
                assert float(found[field][layer, head]) == pytest.approx(float(value), rel=1e-6, abs=1e-12), field


def test_means_over_a_text_are_those_of_its_tokens() -> None:
    trace = default().trace("The keys to the cabinet are on the table")
    assert float(rs.head_statistics(trace).entropy[2, 1]) == pytest.approx(
        float(trace.statistics(2)["entropy"][1].mean()), rel=1e-6
    )
