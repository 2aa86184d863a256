"""Masked means of a batch equal those of each text alone, and masked values are never used."""

import torch

from rheoscope.space.masked_means import centre_points, fill_invalid, masked_mean, valid_counts, zero_invalid_rows
from tests.cases import random

VALID = torch.tensor([[True, True, False, True], [False, True, True, False]])


def with_nan(*shape: int) -> torch.Tensor:
    """Numbers of two texts of four tokens along the last axis, with NaN at invalid tokens."""
    return fill_invalid(random(0, 2, *shape, 4), VALID, torch.nan)


def test_means_equal_those_of_each_text_alone() -> None:
    for shape in ((), (3,), (3, 5)):
        x = with_nan(*shape)
        for i, valid in enumerate(VALID):
            assert torch.allclose(masked_mean(x, VALID)[i], x[i][..., valid].mean(-1))
            assert torch.allclose(masked_mean(x[i], valid), x[i][..., valid].mean(-1))
        assert torch.equal(masked_mean(x.nan_to_num(), None), x.nan_to_num().mean(-1))


def test_clouds_are_centred_on_valid_tokens() -> None:
    x = with_nan(3).mT
    for i, valid in enumerate(VALID):
        valid_points = x[i][valid]
        assert torch.allclose(centre_points(x, VALID)[i][valid], valid_points - valid_points.mean(0))
    assert not centre_points(x, VALID)[~VALID].any()
    assert not zero_invalid_rows(x, VALID)[~VALID].any()
    assert zero_invalid_rows(x, None) is x


def test_counts_are_per_text() -> None:
    assert valid_counts(torch.zeros(2, 3, 4), VALID).flatten().tolist() == [3, 2]
    assert valid_counts(torch.zeros(2, 3, 4), None) == 4
