"""Cosines and participation ratios of many clouds, from inner products, against tables of all pairs and singular values."""

import pytest
import torch
from torch import Tensor

from rheoscope.flow.clusters.concentration import gathering_statistics
from rheoscope.space.pair_distances import cosines
from tests.cases import random

F64 = torch.float64
THERE = torch.arange(30) < torch.tensor([[30], [17]])


def clouds(d: int = 8) -> Tensor:
    """One with tokens at the mean of all and at the origin, one that does not fill its row."""
    x = 3 + random(1, 2, 30, d)
    x[0, :2] = x[0, 2:].mean(0)
    x[1, 3] = 0
    return torch.where(THERE[..., None], x, torch.nan)


def slowly(x: Tensor) -> dict[str, Tensor]:
    around = x - x.mean(0)
    around[around.norm(dim=-1) < 1e-12] = 0
    off = ~torch.eye(len(x), dtype=torch.bool)
    square = torch.linalg.svdvals(around).square()
    return {
        "mean_cosine": cosines(around @ around.mT)[off].mean(),
        "mean_cosine_uncentred": cosines(x @ x.mT)[off].mean(),
        "participation_ratio": square.sum().square() / square.square().sum(),
    }


@pytest.mark.parametrize("d", [8, 40])
def test_every_cloud_has_the_numbers_of_all_its_pairs(d: int) -> None:
    found = gathering_statistics([clouds(d)[None]], clouds(d).norm(dim=-1)[None], THERE, F64)
    for at, there in enumerate(THERE):
        for name, due in slowly(clouds(d)[at][there]).items():
            assert float(found[name][at, 0]) == pytest.approx(float(due), rel=1e-9), name


def test_rounding_to_half_precision_hardly_shows() -> None:
    x = 3 + random(2, 2, 200, 256).float() * torch.linspace(0.1, 2, 256)
    length = x.norm(dim=-1)[None]
    rounded = gathering_statistics([x[None]], length, None, torch.bfloat16)
    due = gathering_statistics([x[None].double()], length.double(), None, F64)
    for name, value in due.items():
        assert torch.allclose(rounded[name].double(), value, rtol=3e-5, atol=1e-6), name


def test_a_cloud_of_one_point_spreads_nowhere() -> None:
    found = gathering_statistics(
        [torch.ones(1, 1, 5, 3, dtype=F64)], torch.full((1, 1, 5), 3**0.5, dtype=F64), None, F64
    )
    assert (float(found["participation_ratio"]), float(found["mean_cosine"])) == (0, 1)


def test_clouds_side_by_side_have_the_numbers_of_each() -> None:
    x = torch.stack([clouds(), 2 + clouds().flip(-1), clouds() ** 2])
    length = x.norm(dim=-1)
    one_by_one, together = (
        gathering_statistics(x.split(1), length, THERE, F64),
        gathering_statistics(x.split(2), length, THERE, F64),
    )
    for name, due in one_by_one.items():
        assert due.shape == (2, 3)
        assert torch.allclose(together[name], due, rtol=1e-12), name
