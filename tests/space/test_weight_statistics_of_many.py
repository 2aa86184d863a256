"""Statistics of the weights of many texts at once: each text's are those it has alone, and 0 beyond its end."""

import pytest
import torch

from tests.cases import double, text


@pytest.mark.parametrize("name", ["gpt2", "bert", "mistral"])
def test_padding_has_no_weights(name: str) -> None:
    traces = double(name).trace([text(at, n) for at, n in enumerate((18, 11, 14))])
    found = traces.statistics(1)
    for at, trace in enumerate(traces):
        for statistic, alone in trace.statistics(1).items():
            assert torch.allclose(found[statistic][at, :, : len(trace)], alone, atol=1e-12), statistic
            assert not found[statistic][at, :, len(trace) :].any(), statistic
