"""Tests of batched cosines and participation ratios against all pairs and singular values."""

import pytest
import torch
from torch import Tensor

from rheoscope.flow.clusters.concentration import gathering_statistics
from rheoscope.space.pair_distances import cosines
from tests.cases import random

F64 = torch.float64
VALID = torch.arange(30) < torch.tensor([[30], [17]])


def clouds(d: int = 8) -> Tensor:
    """Two clouds: one with tokens at the mean, one shorter and with a token at the origin."""
    x = 3 + random(1, 2, 30, d)
    x[0, :2] = x[0, 2:].mean(0)
    x[1, 3] = 0
    return torch.where(VALID[..., None], x, torch.nan)


def slow_statistics(x: Tensor) -> dict[str, Tensor]:
    centred = x - x.mean(0)
    centred[centred.norm(dim=-1) < 1e-12] = 0
    off_diagonal = ~torch.eye(len(x), dtype=torch.bool)
    square = torch.linalg.svdvals(centred).square()
    return {
        "mean_cosine": cosines(centred @ centred.mT)[off_diagonal].mean(),
        "mean_cosine_uncentred": cosines(x @ x.mT)[off_diagonal].mean(),
        "participation_ratio": square.sum().square() / square.square().sum(),
    }


@pytest.mark.parametrize("d", [8, 40])
def test_statistics_equal_those_of_all_pairs(d: int) -> None:
    result = gathering_statistics([clouds(d)[None]], clouds(d).norm(dim=-1)[None], VALID, F64)
    for text_index, is_valid in enumerate(VALID):
        for name, expected in slow_statistics(clouds(d)[text_index][is_valid]).items():
            assert float(result[name][text_index, 0]) == pytest.approx(float(expected), rel=1e-9), name


def test_rounding_to_bfloat16_hardly_changes_the_statistics() -> None:
    x = 3 + random(2, 2, 200, 256).float() * torch.linspace(0.1, 2, 256)
    length = x.norm(dim=-1)[None]
    rounded = gathering_statistics([x[None]], length, None, torch.bfloat16)
    expected = gathering_statistics([x[None].double()], length.double(), None, F64)
    for name, value in expected.items():
        assert torch.allclose(rounded[name].double(), value, rtol=3e-5, atol=1e-6), name


def test_a_cloud_of_equal_points_has_participation_ratio_0() -> None:
    result = gathering_statistics(
        [torch.ones(1, 1, 5, 3, dtype=F64)], torch.full((1, 1, 5), 3**0.5, dtype=F64), None, F64
    )
    assert (float(result["participation_ratio"]), float(result["mean_cosine"])) == (0, 1)


def test_chunks_of_clouds_equal_single_clouds() -> None:
    x = torch.stack([clouds(), 2 + clouds().flip(-1), clouds() ** 2])
    length = x.norm(dim=-1)
    one_by_one, together = (
        gathering_statistics(x.split(1), length, VALID, F64),
        gathering_statistics(x.split(2), length, VALID, F64),
    )
    for name, expected in one_by_one.items():
        assert expected.shape == (2, 3)
        assert torch.allclose(together[name], expected, rtol=1e-12), name
