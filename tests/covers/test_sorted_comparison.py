"""Preservation from sorted pairs equals the definitions, with ties, on sampled rows and in chunks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.covers import preservation as module
from rheoscope.covers.cloud_comparison import geometry
from rheoscope.covers.preservation import plain_preservation, preservation, sorted_preservation
from rheoscope.covers.sorted_comparison import compare_sorted, make_buffers, sorted_reference
from rheoscope.statistics.nulls import sample_rows
from tests.pretrained.cases import random


def images_with_ties(seed: int, n: int, width: int) -> torch.Tensor:
    """Six images: two plain, one with equal tokens, one on a grid, one point and one cloud of integers with many equal distances."""
    images = random(seed, 6, n, width)
    images[2, 3] = images[2, 5]
    images[3] = torch.arange(n, dtype=torch.float64)[:, None]
    images[4] = 1.0
    images[5] = (images[5] * 2).round()
    return images


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000), n=st.integers(9, 24), width=st.integers(1, 30), k=st.integers(1, 4), m=st.integers(2, 30)
)
def test_scores_equal_the_definitions(seed: int, n: int, width: int, k: int, m: int) -> None:
    reference = geometry(random(seed + 1, n, 6), sample_rows(n, m, seed))
    images = images_with_ties(seed, n, width)
    expected = plain_preservation(reference, images, k)
    assert torch.allclose(preservation(reference, images, k), expected, atol=1e-9, equal_nan=True)


def test_only_images_with_ties_are_left_to_the_definitions() -> None:
    reference = sorted_reference(geometry(random(0, 20, 6)), 3)
    assert reference is not None
    _, has_ties = compare_sorted(reference, images_with_ties(1, 20, 5), make_buffers(reference, 6))
    assert has_ties.tolist() == [False, False, True, True, True, True]


def test_a_cloud_with_equal_tokens_has_no_sorted_reference() -> None:
    cloud = random(0, 20, 6)
    cloud[4] = cloud[9]
    assert sorted_reference(geometry(cloud), 3) is None
    images = images_with_ties(1, 20, 5)
    expected = plain_preservation(geometry(cloud), images, 3)
    assert torch.allclose(preservation(geometry(cloud), images, 3), expected, equal_nan=True)


def test_the_size_of_chunks_does_not_change_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = sorted_reference(geometry(random(0, 20, 6)), 3)
    assert reference is not None
    images = random(1, 7, 20, 5)
    expected = sorted_preservation(reference, images)
    for n_pairs in (1, 20 * 20 * 2):
        monkeypatch.setattr(module, "PAIRS_IN_CACHE", n_pairs)
        assert torch.equal(sorted_preservation(reference, images), expected)
