"""Batched preservation scores equal those of each text alone, on the CPU, in Triton and on a GPU."""

import sys
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.covers import image_geometry as module
from rheoscope.covers.cloud_comparison import geometry
from rheoscope.covers.image_geometry import batch_preservation
from rheoscope.covers.preservation import preservation
from tests.interpreter import patch_interpreter
from tests.pretrained.cases import random

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_batch(seed: int) -> Batch:
    """Three clouds with excluded and coinciding tokens, and four images: one is a point, one has coinciding tokens."""
    cloud, images = random(seed, 3, 24, 7), random(seed + 1, 3, 4, 24, 5)
    is_included = torch.ones(3, 24, dtype=torch.bool)
    is_included[0, 5] = is_included[1, 19:] = False
    cloud[0, 7] = cloud[0, 8]
    images[:, 1] = 0
    images[:, 2, 3] = images[:, 2, 9]
    return cloud, is_included, images


def assert_scores_of_single_texts(
    scores: torch.Tensor, cloud: torch.Tensor, is_included: torch.Tensor, images: torch.Tensor, k: int, atol: float
) -> None:
    for index, included in enumerate(is_included):
        expected = preservation(geometry(cloud[index, included]), images[index][:, included], k)
        assert torch.allclose(scores[index].to(expected), expected, atol=atol, equal_nan=True)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), k=st.integers(1, 5))
def test_batched_scores_equal_those_of_single_texts(seed: int, k: int) -> None:
    cloud, is_included, images = random_batch(seed)
    assert_scores_of_single_texts(
        batch_preservation(cloud, is_included, images, k), cloud, is_included, images, k, 1e-9
    )


def test_the_block_size_does_not_change_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, is_included, images = random_batch(0)
    full_scores = batch_preservation(cloud, is_included, images, 3)
    for block_numel in (1, 24 * 24 * 3, 24 * 24 * 9):
        monkeypatch.setattr(module, "cache_block_numel", lambda device, block_numel=block_numel: block_numel)
        assert torch.allclose(batch_preservation(cloud, is_included, images, 3), full_scores, equal_nan=True)


# GPU kernels


def reason_to_skip_triton() -> str:
    """Why the Triton interpreter cannot be used here, or an empty string. It is chosen when Triton is first imported."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    if torch.cuda.is_available():
        return "this machine has a GPU, on which the kernels themselves are tested"
    return "Triton was imported without its interpreter: run this file alone" if "triton" in sys.modules else ""


SKIP_REASON = reason_to_skip_triton()


@pytest.mark.skipif(bool(SKIP_REASON), reason=SKIP_REASON)
def test_triton_scores_equal_torch_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    patch_interpreter()
    from rheoscope.covers.kernels import pairs

    for name, size in (("N_DISTANCE_BINS", 1 << 12), ("N_STRETCH_BINS", 1 << 9), ("N_FINE_BINS", 1 << 8)):
        monkeypatch.setattr(pairs, name, size)
    cloud, is_included, images = random_batch(0)
    centred_distances = module.centred_distances

    def float32_distances(*arguments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, distances = centred_distances(*arguments)
        return x, distances.float()

    monkeypatch.setattr(module, "centred_distances", float32_distances)
    reference = module.batch_geometry(cloud[:, None], is_included)
    expected = module.torch_preservation(reference, images, is_included, 3)
    assert torch.allclose(
        module.triton_preservation(reference, images, is_included, 3), expected, rtol=1e-3, atol=1e-3, equal_nan=True
    )


@pytest.mark.gpu
@pytest.mark.parametrize("n", [24, 300])
def test_gpu_scores_equal_cpu_scores(n: int) -> None:
    cloud, is_included, images = random_batch(0)
    if n > 24:
        cloud, images, is_included = random(0, 3, n, 7), random(1, 3, 4, n, 5), torch.ones(3, n, dtype=torch.bool)
        is_included[0, 5] = is_included[1, 270:] = False
        images[:, 1] = 0
    scores = batch_preservation(cloud.cuda(), is_included.cuda(), images.cuda(), 3).cpu()
    assert_scores_of_single_texts(scores, cloud, is_included, images, 3, 1e-4)
