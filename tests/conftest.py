"""What every test shares: no deadlines, no display, no process left behind, and what the marks ask for."""

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import settings

from rheoscope.space.weights import settle_half_precision
from tests.processes import ended

os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported

ROOT = Path(__file__).parents[1]
UNCHECKED = (
    "src/",
    "tests/laws/",
    "tests/report/",
    "tests/test_benchmarks.py",
    "tests/test_catalogue.py",
    "tests/test_cli.py",
    "tests/test_docs.py",
    "tests/test_opening.py",
)
"""Tests of many rooms at once. The check of shapes at every call takes half their time and finds what a room's tests find."""
REAL_MODELS = Path(os.environ.get("RHEOSCOPE_REAL_MODELS", Path(__file__).parents[2] / "shared" / "models"))
"""A directory of real checkpoints, one folder each; tests marked `real_weights` run where it exists."""

settle_half_precision()  # before any number that a later one must equal
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Shapes are checked at every call of a room's own tests, and not again in those of the whole house."""
    place = item.path.relative_to(ROOT).as_posix()
    jaxtyping.config.update("jaxtyping_disable", place.startswith(UNCHECKED))
    return (yield)


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    with ended():
        yield
