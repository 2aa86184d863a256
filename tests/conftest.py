"""What every test shares: hypothesis without deadlines, no display, and the marks that need hardware or a network."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported; --real-weights lifts it

settings.register_profile("patient", deadline=None)  # a shared machine is slow at times, which says nothing of the code
if not os.environ.get("CI"):  # hypothesis has its own CI profile: no deadline, no randomness
    settings.load_profile("patient")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--real-weights", action="store_true", help="run the tests that read checkpoints from the hub")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--real-weights"):
        os.environ.pop("HF_HUB_OFFLINE", None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
    if item.get_closest_marker("real_weights") and not item.config.getoption("--real-weights"):
        pytest.skip("needs --real-weights")
