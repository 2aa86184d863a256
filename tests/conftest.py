"""What every test shares: hypothesis without deadlines, no display, and the marks that need hardware or a network."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported

REAL_MODELS = Path(os.environ.get("RHEOSCOPE_REAL_MODELS", Path(__file__).parents[2] / "shared" / "models"))
"""A directory of real checkpoints, one folder each; tests marked `real_weights` run where it exists."""

settings.register_profile("patient", deadline=None)  # a shared machine is slow at times, which says nothing of the code
if not os.environ.get("CI"):  # hypothesis has its own CI profile: no deadline, no randomness
    settings.load_profile("patient")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
    if item.get_closest_marker("real_weights") and not REAL_MODELS.is_dir():
        pytest.skip("needs real checkpoints: set RHEOSCOPE_REAL_MODELS to a directory of them")
