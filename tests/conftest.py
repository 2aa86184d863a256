"""What every test shares: no deadlines, no display, no process left behind, and what the marks ask for."""

import gc
import linecache
import os
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
# A pool of compilers would end with the test that started it, and whoever compiles next would wait for it for ever.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

ROOT = Path(__file__).parents[1]
BATTERIES = tuple(f"tests/laws/every_{subject}.py" for subject in ("analysis", "batch", "dtype", "family", "move"))
"""Laws of models: with `-m gpu` the models stand on the GPU (tests/place.py), and so their laws are tests of it."""
UNCHECKED = (
    "src/",
    "tests/corpus/test_corpus_run.py",
    "tests/corpus/test_corpus_result.py",
    "tests/corpus/test_distributed_run.py",
    "tests/covers/test_agreement.py::test_random_heads_lie_inside_their_null",
    "tests/covers/test_attention_patching.py::test_the_derivative_at_0_is_the_sum_of_the_slopes",
    "tests/covers/test_boundary.py::test_it_equals_dense_twins",
    "tests/covers/test_decay.py::test_deviations_are_those_of_the_points",
    "tests/covers/test_decay.py::test_no_gauge_moves_any_number",
    "tests/covers/test_per_head.py::test_every_head_costs_what_surgery_of_it_alone_costs",
    "tests/covers/test_per_head.py::test_no_gauge_changes_any_field",
    "tests/covers/test_faithfulness.py::test_the_ends_of_the_curves",
    "tests/covers/test_head_replacement.py::test_a_replaced_",
    "tests/covers/test_surgery.py::test_no_gauge_changes_any_field",
    "tests/space/test_repr.py",
    "tests/theory/test_experiments.py",
    "tests/laws/",
    "tests/learn/test_geometry_over_training.py",
    "tests/learn/test_entrants.py::test_every_entrant_",
    "tests/learn/test_packed_model.py::test_a_step_never_synchronises_with_the_device",
    "tests/learn/test_distributed_race.py",
    "tests/learn/test_small_tasks.py::test_a_few_steps_beat_chance",
    "tests/report/",
    "tests/studio/test_export.py",
    "tests/studio/test_fuzz.py",
    "tests/studio/test_server.py",
    "tests/test_benchmarks.py",
    "tests/pictures/test_readability.py",
    "tests/test_catalogue.py",
    "tests/commands/",
    "tests/test_docs.py",
    "tests/test_ideas.py",
    "tests/test_opening.py",
    "tests/test_readme.py",
)
"""Tests of many rooms at once, or of many runs of one. The check of shapes at every call takes half their time and finds
what the other tests of the room find. Or tests of what an annotation forbids and a person may type."""
CHECKED, CASES = 3, defaultdict[str, Iterator[int]](count)
"""Cases of one test in which shapes are checked, and how many each has had in this process."""
REAL_MODELS = Path(os.environ.get("RHEOSCOPE_REAL_MODELS", Path(__file__).parents[2] / "shared" / "models"))
"""A directory of real checkpoints, one folder each; tests marked `real_weights` run where it exists."""

settings.register_profile("patient", deadline=None)  # a shared machine is slow at times, which says nothing of the code
if not os.environ.get("CI"):  # hypothesis has its own CI profile: no deadline, no randomness
    settings.load_profile("patient")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "gpu":
        if config.args_source is config.ArgsSource.TESTPATHS:
            config.args[:] = ["tests"]  # no example in the sources needs a GPU, and some import what its machine lacks
        import torch

        if torch.cuda.is_available():
            os.environ.setdefault("RHEOSCOPE_TEST_DEVICE", "cuda")
    elif config.args_source is config.ArgsSource.TESTPATHS and reads_backwards():
        config.args[:] = [*sorted(map(str, rooms()), reverse=True), str(ROOT / "src")]


def reads_backwards() -> bool:
    """Every second worker: it finds compiled what the others have read, and they what it has. A fresh clone is compiled once."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2 == 1


def rooms() -> list[Path]:
    """The folders of tests, and the files of tests beside them."""
    folders = (one for one in (ROOT / "tests").iterdir() if one.is_dir() and one.name != "__pycache__")
    return [*folders, *(ROOT / "tests").glob("test_*.py")]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu` only files that hold such tests are read: a bare GPU machine lacks what the others import."""
    if config.option.markexpr != "gpu" or collection_path.suffix != ".py" or collection_path.name == "conftest.py":
        return None
    place = collection_path.relative_to(ROOT).as_posix()
    batteries = {one.split("::")[0] for one in BATTERIES}
    return None if place in batteries or "mark.gpu" in collection_path.read_text(encoding="utf-8") else True


def pytest_sessionstart(session: pytest.Session) -> None:
    """The package is first imported here, and not in a process that only hands out tests to its workers."""
    if is_xdist_worker(session):
        session.config.pluginmanager.register(Outcomes())
    if not is_xdist_controller(session):
        gc.disable()  # what is imported and collected is no garbage: searches for it take a seventh of that time
        from tests import checking, shipped

        checking.install()
        shipped.install()
        from rheoscope.running.weight_files import probe_bfloat16_matmul

        probe_bfloat16_matmul()  # before any number that a later one must equal


def pytest_collection_finish() -> None:
    gc.freeze()  # what was collected lives as long as the run; no search for garbage walks through it again
    gc.set_threshold(50_000, 20, 50)  # most garbage needs no search
    gc.enable()
    linecache.clearcache()  # doctest looks at every file in it again before each example


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Public functions are shown by the package and stand in their own files: their examples run there."""
    shown = [one for one in items if not one.nodeid.startswith("src/rheoscope/__init__.py::rheoscope.")]
    items[:] = sorted(shown, key=lambda one: (one.nodeid.startswith("src/"), str(one.path)))
    if "RHEOSCOPE_TEST_DEVICE" in os.environ:
        for one in items:
            if one.nodeid.startswith(BATTERIES):
                one.add_marker("gpu")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available() and os.environ.get("RHEOSCOPE_TEST_DEVICE") != "away":
            pytest.skip("needs a CUDA device")
    if item.get_closest_marker("real_weights") and not REAL_MODELS.is_dir():
        pytest.skip("needs real checkpoints: set RHEOSCOPE_REAL_MODELS to a directory of them")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Shapes are checked in the first cases of a room's own tests, and not again in those of the whole house."""
    place = f"{item.path.relative_to(ROOT).as_posix()}::{item.name}"
    case = next(CASES[place.split("[")[0]])
    jaxtyping.config.update("jaxtyping_disable", place.startswith(UNCHECKED) or case >= CHECKED)
    return (yield)


@pytest.fixture(scope="session", autouse=True)
def shared_by_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A folder of this run that all its workers see, and that pytest clears away."""
    own = tmp_path_factory.getbasetemp()
    os.environ["RHEOSCOPE_TESTS_SHARED"] = str(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(autouse="RHEOSCOPE_TEST_DEVICE" in os.environ)
def where_the_models_are() -> Iterator[None]:
    """The pretended device is there while a test runs; a GPU always is."""
    from tests.elsewhere import elsewhere

    with elsewhere() if os.environ["RHEOSCOPE_TEST_DEVICE"] == "away" else nullcontext():
        yield


@pytest.fixture(autouse=True)
def no_process_outlives_its_test() -> Iterator[None]:
    with end_processes():
        yield
