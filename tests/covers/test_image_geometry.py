"""What images keep, many texts at once: each as `geometry` says it of the tokens that count alone."""

import sys
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheoscope.covers import image_geometry as module
from rheoscope.covers.cloud_comparison import geometry, preservation
from rheoscope.covers.image_geometry import batch_preservation
from tests.interpreter import mend_interpreter
from tests.pretrained.cases import random

Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def texts(seed: int) -> Given:
    """Three clouds with gaps and two tokens in one place, and images of them: any, a point, one with tokens in one place."""
    cloud, images = random(seed, 3, 24, 7), random(seed + 1, 3, 4, 24, 5)
    there = torch.ones(3, 24, dtype=torch.bool)
    there[0, 5] = there[1, 19:] = False
    cloud[0, 7] = cloud[0, 8]
    images[:, 1] = 0
    images[:, 2, 3] = images[:, 2, 9]
    return cloud, there, images


def same(
    found: torch.Tensor, cloud: torch.Tensor, there: torch.Tensor, images: torch.Tensor, k: int, atol: float
) -> None:
    for at, counted in enumerate(there):
        wanted = preservation(geometry(cloud[at, counted]), images[at][:, counted], k)
        assert torch.allclose(found[at].to(wanted), wanted, atol=atol, equal_nan=True)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), k=st.integers(1, 5))
def test_each_text_is_as_alone(seed: int, k: int) -> None:
    cloud, there, images = texts(seed)
    same(batch_preservation(cloud, there, images, k), cloud, there, images, k, 1e-9)


def test_blocks_of_images_and_texts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, there, images = texts(0)
    whole = batch_preservation(cloud, there, images, 3)
    for room in (1, 24 * 24 * 3, 24 * 24 * 9):
        monkeypatch.setattr(module, "cache_block_numel", lambda device, room=room: room)
        assert torch.allclose(batch_preservation(cloud, there, images, 3), whole, equal_nan=True)


# As a GPU has it


def interpreted() -> str:
    """Triton with its interpreter, which is asked for when it is first imported; or why it cannot be had."""
    if find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    if torch.cuda.is_available():
        return "there is a GPU: the kernels themselves are tested"
    return "Triton was imported without its interpreter: run this file alone" if "triton" in sys.modules else ""


WITHOUT = interpreted()


@pytest.mark.skipif(bool(WITHOUT), reason=WITHOUT)
def test_kernels_give_what_sorting_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    mend_interpreter()
    from rheoscope.covers.kernels import pairs

    for name, size in (("N_DISTANCE_BINS", 1 << 12), ("N_STRETCH_BINS", 1 << 9), ("N_FINE_BINS", 1 << 8)):
        monkeypatch.setattr(pairs, name, size)
    cloud, there, images = texts(0)
    exact = module.centred_distances
    monkeypatch.setattr(module, "centred_distances", lambda *given: (exact(*given)[0], exact(*given)[1].float()))
    of = module.batch_geometry(cloud[:, None], there)
    wanted = module.torch_preservation(of, images, there, 3)
    assert torch.allclose(
        module.triton_preservation(of, images, there, 3), wanted, rtol=1e-3, atol=1e-3, equal_nan=True
    )


@pytest.mark.gpu
@pytest.mark.parametrize("n", [24, 300])
def test_on_a_gpu_as_on_a_cpu(n: int) -> None:
    cloud, there, images = texts(0)
    if n > 24:
        cloud, images, there = random(0, 3, n, 7), random(1, 3, 4, n, 5), torch.ones(3, n, dtype=torch.bool)
        there[0, 5] = there[1, 270:] = False
        images[:, 1] = 0
    found = batch_preservation(cloud.cuda(), there.cuda(), images.cuda(), 3).cpu()
    same(found, cloud, there, images, 3, 1e-4)
