"""Every benchmark runs: its smallest form, in this process. How fast anything is, no test asks."""

import gc
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
PARTS = {"timing", "peers"}
"""What benchmarks are made of."""
BENCHMARKS = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem not in PARTS)
ON_A_GPU = [("training_cuda", []), ("trace", ["--cuda"]), ("gpu", [])]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[list[str]], None]]:
    """What a benchmark does with the words after its name."""
    gc.freeze()  # what other tests left: a benchmark that measures memory searches for its own garbage alone
    monkeypatch.syspath_prepend(FOLDER)
    return lambda name: runpy.run_path(str(FOLDER / f"{name}.py"), run_name=name)["main"]


def results() -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in (FOLDER / "results").iterdir()}


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if not name.endswith("cuda")])
def test_the_smallest_form_runs_and_stores_nothing(name: str, main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stored = results()
    main(name)(["--smallest"])
    assert capsys.readouterr().out
    assert results() == stored


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's compiler looks at every tensor it meets
@pytest.mark.parametrize(("name", "words"), ON_A_GPU)
def test_the_smallest_form_runs_on_a_gpu(name: str, words: list[str], main: Any) -> None:
    stored = results()
    main(name)(["--smallest", *words])
    assert results() == stored


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_says_what_it_is(name: str, main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(name)(["--help"])
    assert end.value.code == 0
    assert "--smallest" in capsys.readouterr().out


def test_memory_is_that_of_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No benchmark starts one in its smallest form, as each would import torch."""
    monkeypatch.syspath_prepend(FOLDER)
    from timing import peak_bytes

    held, more = "x = bytes(range(256)) * 200_000\n", "y = bytes(range(256)) * 40_000\n"
    assert 10_000_000 < peak_bytes(f"{held}# measured\n{more}") < 20_000_000
    assert 40_000_000 < peak_bytes(f"# measured\n{held}del x\n{more}") < 70_000_000  # what is given back was held too


def test_there_are_benchmarks() -> None:
    assert {"attention_cpu", "trace", "training_cuda"} <= set(BENCHMARKS)


def test_two_kernels_at_a_time_keep_a_gpu_busy_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    covered = runpy.run_path(str(FOLDER / "corpus.py"), run_name="corpus")["covered"]
    assert covered([(0, 2), (5, 6), (1, 3), (1, 2)]) == 4
    assert covered([]) == 0
