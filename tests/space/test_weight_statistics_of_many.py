"""Weight statistics of a batch equal those of each text alone, and are 0 at padding."""

import pytest
import torch

from tests.cases import double, text


@pytest.mark.parametrize("name", ["gpt2", "bert", "mistral"])
def test_batched_statistics_equal_single_ones_and_are_zero_at_padding(name: str) -> None:
    traces = double(name).trace([text(seed, n) for seed, n in enumerate((18, 11, 14))])
    batched = traces.statistics(1)
    for i, trace in enumerate(traces):
        for statistic, alone in trace.statistics(1).items():
            assert torch.allclose(batched[statistic][i, :, : len(trace)], alone, atol=1e-12), statistic
            assert not batched[statistic][i, :, len(trace) :].any(), statistic
