"""Chance: rotations are orthogonal and even, q-values are scipy's."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from rheoscope.space.chance import q_values, rotations

F64 = torch.float64


def test_rotations_are_orthogonal_and_even() -> None:
    Q = rotations(600, 5, torch.Generator().manual_seed(0))
    assert torch.allclose(Q @ Q.mT, torch.eye(5).expand_as(Q), atol=1e-5)
    assert float(Q.mean(0).abs().max()) < 0.1
    assert torch.allclose(Q.square().mean(0), torch.full((5, 5), 0.2), atol=0.05)


@given(seed=st.integers(0, 1000), n=st.integers(1, 30))
def test_q_values_are_scipys(seed: int, n: int) -> None:
    p = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=F64)
    assert np.allclose(q_values(p), false_discovery_control(p.numpy()))
    holed = torch.cat([p, torch.tensor([float("nan")], dtype=F64)])
    assert np.allclose(q_values(holed)[:-1], q_values(p))
    assert bool(q_values(holed)[-1].isnan())
