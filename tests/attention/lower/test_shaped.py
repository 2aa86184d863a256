"""Shaped attention as a sum of three."""

from dataclasses import replace

import pytest
import torch

from rheoscope.attention.definition import reference
from rheoscope.attention.feature_maps import Linear
from rheoscope.attention.lower import shaped
from rheoscope.attention.lower.lowering import Offer
from rheoscope.attention.mask import Table
from rheoscope.attention.normaliser.shaped import Shaped
from tests.attention.cases import MASKS, gap, inputs, made, random

SELF = [name for name in MASKS if MASKS[name](5, 5).sees_itself]


@pytest.mark.parametrize("mask", SELF)
def test_the_sum_of_three(mask: str) -> None:
    q, k, v = inputs(5, 5)
    part = replace(made("shaped"), normaliser=Shaped(0.3, 2.0, 0.7), value=Linear(random(1, 3, 2))).under(
        MASKS[mask](5, 5)
    )
    answer = shaped.offer(part, q, k, v)
    assert isinstance(answer, Offer)
    assert gap(answer.run(part, q, k, v), reference(part, q, k, v)[0]) < 1e-12


def test_a_mask_that_may_forbid_a_token_to_itself_is_refused() -> None:
    answer = shaped.offer(made("shaped").under(Table(torch.ones(5, 5, dtype=torch.bool))), *inputs(5, 5))
    assert isinstance(answer, str)
    assert "forbid a token to itself" in answer
    assert "not alpha I" in str(shaped.offer(made("sigmoid"), *inputs(5, 5)))
