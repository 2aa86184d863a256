"""Shaped attention as a sum of three parts."""

from dataclasses import replace

import pytest
import torch

from rheoscope.attention.definition import reference_attention
from rheoscope.attention.feature_maps import Linear
from rheoscope.attention.lower import shaped
from rheoscope.attention.lower.lowering import LoweredCall
from rheoscope.attention.mask import BooleanMask
from rheoscope.attention.normaliser.shaped import Shaped
from tests.attention.cases import MASKS, gap, inputs, random, zoo_mechanism

SELF_MASKS = [name for name in MASKS if MASKS[name](5, 5).allows_self]


@pytest.mark.parametrize("mask", SELF_MASKS)
def test_the_sum_of_three_parts_equals_the_reference(mask: str) -> None:
    q, k, v = inputs(5, 5)
    mechanism = replace(
        zoo_mechanism("shaped"), normaliser=Shaped(0.3, 2.0, 0.7), value=Linear(random(1, 3, 2))
    ).with_mask(MASKS[mask](5, 5))
    outcome = shaped.try_lower(mechanism, q, k, v)
    assert isinstance(outcome, LoweredCall)
    assert gap(outcome.run(mechanism, q, k, v), reference_attention(mechanism, q, k, v)[0]) < 1e-12


def test_a_mask_without_the_diagonal_is_refused() -> None:
    outcome = shaped.try_lower(
        zoo_mechanism("shaped").with_mask(BooleanMask(torch.ones(5, 5, dtype=torch.bool))), *inputs(5, 5)
    )
    assert isinstance(outcome, str)
    assert "forbid a token to attend to itself" in outcome
    assert "not alpha I" in str(shaped.try_lower(zoo_mechanism("sigmoid"), *inputs(5, 5)))
