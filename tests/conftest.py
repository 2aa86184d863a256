"""Settings of all tests: no deadlines, no display, no child processes left behind, and skips for marked tests."""

import gc
import linecache
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import settings
from xdist import is_xdist_controller, is_xdist_worker

from tests.cluster import cluster, head  # noqa: F401 - fixtures
from tests.outcomes import Outcomes
from tests.processes import end_processes

os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before transformers is imported
# What the package stores for its user (tapes, cards, recent models) goes to a folder of this process.
CACHES = Path(os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")))
os.environ.setdefault("HF_HOME", str(CACHES / "huggingface"))
os.environ.setdefault("MPLCONFIGDIR", str(CACHES / "matplotlib"))  # it takes seconds to list the fonts
OWN_CACHES = tempfile.TemporaryDirectory(prefix="rheoscope-tests-")
os.environ["XDG_CACHE_HOME"] = OWN_CACHES.name
# A pool of compile workers would be killed after the test that started it, and the next compilation would wait for ever.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

ROOT = Path(__file__).parents[1]
MODEL_LAWS = tuple(f"tests/laws/every_{subject}.py" for subject in ("analysis", "batch", "dtype", "family", "move"))
"""Laws of models. With `-m gpu` the models are on the GPU (tests/place.py), so these files are GPU tests too."""
UNCHECKED = (
    "src/",  # doctests run as users run them, without checks
    "tests/pictures/",  # pictures accept NumPy's scalars where the annotation says float; no signature there has a shape
    "tests/report/",  # the same scalars in texts and drawings
    "tests/commands/",  # Typer passes its own class of Context, which the annotations of commands do not name
    "tests/test_ideas.py",  # runs the same commands in this process
    "tests/learn/test_distributed_race.py",  # computes in child processes, which have no shape checks
)
"""Beginnings of the names of tests without shape checks, each with its reason."""
CHECKED_CASES, CASE_COUNTERS = 3, defaultdict[str, Iterator[int]](count)
"""Shapes are checked in the first 3 cases of a test; the counters count the cases in this process."""
REAL_MODELS = Path(os.environ.get("RHEOSCOPE_REAL_MODELS", Path(__file__).parents[2] / "shared" / "models"))
"""A directory of real checkpoints, one folder each. Tests marked `real_weights` run if it exists."""

settings.register_profile("patient", deadline=None)  # a shared machine can be slow
if not os.environ.get("CI"):  # in CI, hypothesis uses its own profile without deadlines and randomness
    settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "gpu":
        if config.args_source is config.ArgsSource.TESTPATHS:
            config.args[:] = ["tests"]  # no doctest needs a GPU, and some import packages that a GPU machine lacks
        import torch

        if torch.cuda.is_available():
            os.environ.setdefault("RHEOSCOPE_TEST_DEVICE", "cuda")
    elif config.args_source is config.ArgsSource.TESTPATHS and collects_in_reverse():
        ignored = {Path(path).resolve() for path in config.option.ignore or ()}
        roots = [path for path in collection_roots() if path not in ignored]  # a path given by name is never ignored
        config.args[:] = [*sorted(map(str, roots), reverse=True), str(ROOT / "src")]


def collects_in_reverse() -> bool:
    """Whether this is a worker with an odd number. It collects in reverse, so that a fresh clone is compiled to bytecode only once."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2 == 1


def collection_roots() -> list[Path]:
    """The folders of tests, and the test files at the top level."""
    folders = (path for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__")
    return [*folders, *(ROOT / "tests").glob("test_*.py")]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, collect only files with GPU tests, because a GPU machine lacks packages that others import."""
    if config.option.markexpr != "gpu" or collection_path.suffix != ".py" or collection_path.name == "conftest.py":
        return None
    file = collection_path.relative_to(ROOT).as_posix()
    return None if file in MODEL_LAWS or "mark.gpu" in collection_path.read_text(encoding="utf-8") else True


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import the package here, but not in the xdist controller, which runs no tests."""
    if is_xdist_worker(session):
        session.config.pluginmanager.register(Outcomes())
    if not is_xdist_controller(session):
        gc.disable()  # imports and collection leave no garbage, and collecting it would take a seventh of their time
        from tests import checking, shipped

        checking.install()
        shipped.install()
        from rheoscope.running.weight_files import probe_bfloat16_matmul

        probe_bfloat16_matmul()  # before any computation, because the probe can change later rounding


def pytest_collection_finish() -> None:
    gc.freeze()  # collected tests live until the end, so the garbage collector can skip them
    gc.set_threshold(50_000, 20, 50)  # reference counting frees most garbage
    gc.enable()
    linecache.clearcache()  # doctest checks every cached file before each example


def pytest_sessionfinish() -> None:
    gc.freeze()  # at its end pytest collects garbage five times, which would visit everything that the tests have cached


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drop the doctests of names that `rheoscope` re-exports, which run in their own files. Then sort the rest.

    Slow tests come first, so that no worker begins one when the others have finished.
    """
    unique = [item for item in items if not item.nodeid.startswith("src/rheoscope/__init__.py::rheoscope.")]
    items[:] = sorted(unique, key=collection_order)
    if "RHEOSCOPE_TEST_DEVICE" in os.environ:
        for item in items:
            if item.nodeid.startswith(MODEL_LAWS):
                item.add_marker("gpu")


def collection_order(item: pytest.Item) -> tuple[bool, bool, str]:
    return item.get_closest_marker("slow") is None, item.nodeid.startswith("src/"), str(item.path)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available() and os.environ.get("RHEOSCOPE_TEST_DEVICE") != "away":
            pytest.skip("needs a CUDA device")
    if item.get_closest_marker("real_weights") and not REAL_MODELS.is_dir():
        pytest.skip("needs real checkpoints: set RHEOSCOPE_REAL_MODELS to a directory of them")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Check shapes in the first cases of a test, unless it is in UNCHECKED."""
    test = f"{item.path.relative_to(ROOT).as_posix()}::{item.name}"
    case = next(CASE_COUNTERS[test.split("[")[0]])
    jaxtyping.config.update("jaxtyping_disable", test.startswith(UNCHECKED) or case >= CHECKED_CASES)
    return (yield)


@pytest.fixture(scope="session", autouse=True)
def folder_shared_by_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder that all workers of this run share, and that pytest removes."""
    folder = tmp_path_factory.getbasetemp()
    os.environ["RHEOSCOPE_TESTS_SHARED"] = str(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


@pytest.fixture(autouse="RHEOSCOPE_TEST_DEVICE" in os.environ)
def fake_device() -> Iterator[None]:
    """Enable the fake device during a test if RHEOSCOPE_TEST_DEVICE is "away"."""
    from tests.elsewhere import elsewhere

    with elsewhere() if os.environ["RHEOSCOPE_TEST_DEVICE"] == "away" else nullcontext():
        yield


@pytest.fixture(autouse=True)
def end_child_processes() -> Iterator[None]:
    """Kill the child processes of a test at its end."""
    with end_processes():
        yield
