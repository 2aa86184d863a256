"""Every benchmark runs in its smallest form, and same_numbers.py reports differences. No test measures speed."""

import gc
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.attention.cases import without_jaxtyping_checks
from tests.processes import run_in_fork, unload_packages

FOLDER = Path(__file__).parents[1] / "benchmarks"
SHARED_MODULES = {
    "timing",
    "peers",
    "checkpointed_jobs",
    "tiny_cards",
    "resampled_cards",
    "planted_cards",
    "planted_points",
    "planted_weights",
    "tiny_networks",
    "network_proofs",
    "float64_arithmetic",
    "page_visitor",
    "simulated_races",
    "monitored_runs",
}
"""Modules that benchmarks import."""
BENCHMARKS = sorted(file.stem for file in FOLDER.glob("*.py") if file.stem not in SHARED_MODULES)
ON_A_GPU = [("training_cuda", []), ("trace", ["--cuda"]), ("gpu", [])]


@pytest.fixture
def load_main(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[list[str]], None]]:
    """A function from the name of a benchmark to its `main`."""
    gc.freeze()  # so that a benchmark of memory collects only its own garbage
    monkeypatch.syspath_prepend(FOLDER)
    return lambda name: runpy.run_path(str(FOLDER / f"{name}.py"), run_name=name)["main"]


def results() -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in (FOLDER / "results").iterdir()}


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if not name.endswith("cuda")])
def test_the_smallest_form_runs_and_stores_nothing(
    name: str, load_main: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = results()
    load_main(name)(["--smallest"])
    assert capsys.readouterr().out
    assert results() == stored


@pytest.mark.gpu
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor"
)  # torch's compiler reads the attribute of every tensor
@pytest.mark.parametrize(("name", "arguments"), ON_A_GPU)
def test_the_smallest_form_runs_on_a_gpu(name: str, arguments: list[str], load_main: Any) -> None:
    """Without shape checks, which torch.compile cannot trace. A benchmark may choose TF32 for its process."""
    import torch

    stored, precision = results(), torch.get_float32_matmul_precision()
    try:
        with without_jaxtyping_checks():
            load_main(name)(["--smallest", *arguments])
    finally:
        torch.set_float32_matmul_precision(precision)
    assert results() == stored


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_help(name: str, load_main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        load_main(name)(["--help"])
    assert exit_info.value.code == 0
    assert "--smallest" in capsys.readouterr().out


def test_peak_memory_is_measured_in_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their smallest form, benchmarks start no process, because it would import torch."""
    monkeypatch.syspath_prepend(FOLDER)
    from timing import peak_bytes

    allocate_50_mb, allocate_10_mb = "x = bytes(range(256)) * 200_000\n", "y = bytes(range(256)) * 40_000\n"
    assert 10_000_000 < peak_bytes(f"{allocate_50_mb}# measured\n{allocate_10_mb}") < 20_000_000
    assert (
        40_000_000 < peak_bytes(f"# measured\n{allocate_50_mb}del x\n{allocate_10_mb}") < 70_000_000
    )  # freed memory counts towards the peak


def test_the_page_of_model_types_is_that_of_the_stored_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    families = runpy.run_path(str(FOLDER / "families.py"), run_name="families")
    page = families["DOCS_PAGE"].read_text(encoding="utf-8")
    version = json.loads(families["FILE"].read_text(encoding="utf-8"))["transformers"]
    assert page == families["as_page"](families["stored_rows"](), version), (
        "type python benchmarks/families.py --write-docs"
    )


def test_the_table_of_family_files_is_that_of_the_stored_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    benchmark = runpy.run_path(str(FOLDER / "family_files.py"), run_name="family_files")
    page = benchmark["DOCS_PAGE"].read_text(encoding="utf-8")
    assert f"\n\n{benchmark['as_table'](benchmark['stored_rows']())}\n\n" in page, (
        "type python benchmarks/family_files.py --write-docs"
    )


def test_every_type_with_a_family_file_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    benchmark = runpy.run_path(str(FOLDER / "family_files.py"), run_name="family_files")
    assert set(benchmark["CONFIGS"]) == set(benchmark["FAMILIES"])


def test_there_are_benchmarks() -> None:
    assert {"attention_cpu", "trace", "training_cuda"} <= set(BENCHMARKS)


def test_overlapping_kernels_count_once_as_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    covered = runpy.run_path(str(FOLDER / "corpus.py"), run_name="corpus")["covered"]
    assert covered([(0, 2), (5, 6), (1, 3), (1, 2)]) == 4
    assert covered([]) == 0


# benchmarks/same_numbers.py: whether two versions of the package give the same numbers


@pytest.fixture
def same_numbers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(FOLDER)
    return runpy.run_path(str(FOLDER / "same_numbers.py"), run_name="same_numbers")


def fields(**values: Any) -> dict[tuple[str, str], Any]:
    """A result with fields along one axis."""
    return {("field", name): (("token",), np.array(numbers)) for name, numbers in values.items()}


def problems(same_numbers: dict[str, Any], old: Any, new: Any, model: str = "llama") -> dict[tuple[str, str], str]:
    """(analysis, name) → the unexpected differences between two results of an analysis."""
    comparison = same_numbers["Comparison"]()
    name = same_numbers["RENAMED_ANALYSES"].get("speed", "speed")
    same_numbers["compare"]({("speed", 0): old}, {(name, 0): new}, (model, "short"), comparison)
    assert same_numbers["report"](comparison)
    return {key: comparison.differences[key][0].problem for key in comparison.unexplained()}


OLD_ANSWER = fields(size=[1.0, 2.0, np.nan], count=[1, 2, 3], label=["a", "b", "c"]) | {
    ("coordinate", "token"): (("token",), np.arange(3)),
    ("attribute", "draws"): ((), np.array(8)),
}


def test_equal_results_have_no_difference(same_numbers: dict[str, Any]) -> None:
    wide = fields(label=np.array(["a", "b", "c"], dtype="<U9"))
    assert not problems(same_numbers, OLD_ANSWER, OLD_ANSWER | wide)
    assert not problems(same_numbers, "refused", "refused")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (fields(size=[1.0, 2.00000001, np.nan]), "size"),
        (fields(size=[1.0, np.nan, 2.0]), "size"),
        (fields(size=[1.0, 2.0, np.inf]), "size"),
        (fields(size=np.array([1.0, 2.0, np.nan], dtype=np.float32)), "size"),
        (fields(size=[1.0, 2.0]), "size"),
        (fields(count=[1, 2, 4]), "count"),
        (fields(count=[1.0, 2.0, 3.0]), "count"),
        (fields(label=["a", "b", "d"]), "label"),
        ({("field", "size"): (("layer",), np.array([1.0, 2.0, np.nan]))}, "size"),
        ({("coordinate", "token"): (("token",), np.arange(1, 4))}, "token"),
        ({("attribute", "draws"): ((), np.array(9))}, "draws"),
        (fields(more=[1.0]), "more"),
    ],
)
def test_a_planted_difference_is_reported(same_numbers: dict[str, Any], change: Any, name: str) -> None:
    assert list(problems(same_numbers, OLD_ANSWER, OLD_ANSWER | change)) == [("speed", name)]
    assert list(problems(same_numbers, OLD_ANSWER | change, OLD_ANSWER)) == [("speed", name)]


def test_a_refusal_by_one_version_is_reported(same_numbers: dict[str, Any]) -> None:
    assert problems(same_numbers, OLD_ANSWER, "refused") == {("speed", "*"): "an answer → refused"}
    assert problems(same_numbers, "refused", OLD_ANSWER) == {("speed", "*"): "refused → an answer"}


def test_the_rounding_of_the_dtype_is_allowed(same_numbers: dict[str, Any]) -> None:
    old, rounded = fields(size=[1.0, 1e-20, 2.0]), fields(size=[1.0, 2e-20, 2.0 + 1e-10])
    assert not problems(same_numbers, old, rounded)
    nearly = fields(size=[1.0, 1e-20, 2.00001])
    assert not problems(same_numbers, old, nearly, model="default")
    assert problems(same_numbers, old, nearly)


def test_renamed_results_are_compared(same_numbers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    old = fields(size=[1.0], cost_sampled=[2.0], label=["a"]) | {("attribute", "least"): ((), np.array(4))}
    new = {
        ("field", "norm"): (("position",), np.array([1.0])),
        ("field", "cost_null_draws"): (("position",), np.array([2.0])),
        ("field", "label"): (("position",), np.array(["first"])),
        ("attribute", "min_tokens"): ((), np.array(4)),
    }
    assert len(problems(same_numbers, old, new)) == 7
    monkeypatch.setitem(same_numbers["RENAMED_ANALYSES"], "speed", "velocity")
    monkeypatch.setitem(same_numbers["RENAMED_FIELDS"], ("speed", "size"), "norm")
    monkeypatch.setitem(same_numbers["RENAMED_FIELDS"], ("*", "token"), "position")
    monkeypatch.setitem(same_numbers["RENAMED_SUFFIXES"], "_sampled", "_null_draws")
    monkeypatch.setitem(same_numbers["RENAMED_LABELS"], ("speed", "label"), {"a": "first"})
    monkeypatch.setitem(same_numbers["RENAMED_SETTINGS"], ("speed", "least"), "min_tokens")
    assert not problems(same_numbers, old, new)
    changed = new | {("field", "norm"): (("position",), np.array([1.5]))}
    assert problems(same_numbers, old, changed) == {("velocity", "norm"): "field: relative difference 0.33"}


def test_an_expected_difference_is_explained(same_numbers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fields(size=[1.0], count=[1]), fields(size=[2.0], count=[2])
    monkeypatch.setitem(same_numbers["EXPECTED_DIFFERENCES"], ("speed", "size"), "it was wrong")
    assert list(problems(same_numbers, old, new)) == [("speed", "count")]


def test_settings_are_passed_under_their_new_names(
    same_numbers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def velocity(model: Any, text: str, granularity: str = "layer", seed: int = 0) -> dict[str, Any]:
        return {}

    subject = same_numbers["Subject"](package=None, model="a model", texts={"short": "A text"})
    arguments_of, settings = same_numbers["arguments_of"], {"grain": "half", "seed": 3}
    with pytest.raises(SystemExit, match="velocity has no setting grain"):
        arguments_of(velocity, "speed", settings, subject, "short", "new")
    monkeypatch.setitem(same_numbers["RENAMED_SETTINGS"], ("*", "grain"), "granularity")
    monkeypatch.setitem(same_numbers["RENAMED_SETTING_VALUES"], ("speed", "grain"), {"half": "sublayer"})
    call = arguments_of(velocity, "speed", settings, subject, "short", "new")
    assert call == {"model": "a model", "text": "A text", "granularity": "sublayer", "seed": 3}


def test_processes_share_the_missing_parts(
    same_numbers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, parts = list[Any](), [("llama", "short"), ("llama", "long"), ("gpt2", "short"), ("gpt2", "long")]
    run_collectors = same_numbers["run_collectors"]
    monkeypatch.setitem(
        run_collectors.__globals__, "run_collector", lambda version, share, analyses: shares.append(share)
    )
    same_numbers["file_of"](tmp_path, parts[0]).touch()
    run_collectors(
        [same_numbers["Version"]("old", tmp_path, (tmp_path,))], parts, SimpleNamespace(jobs=2, analyses=None)
    )
    assert sorted(shares) == [[("gpt2", "short")], [("llama", "long"), ("gpt2", "long")]]


def run_script_in_fork(command: list[str], env: dict[str, str], cwd: Path) -> CompletedProcess[str]:
    """Run a command of this interpreter, as `subprocess.run` does, but in a fork, which does not import torch again."""
    interpreter, script, *arguments = command
    assert interpreter == sys.executable

    def work() -> None:
        unload_packages("timing", "peers")
        sys.path[:0] = [str(Path(script).parent), env["PYTHONPATH"]]
        os.chdir(cwd)
        runpy.run_path(script, run_name="__main__")
        os._exit(0)  # because the usual end waits for the pool of threads that made this fork

    result = run_in_fork(work, *arguments, **env)
    print(result.stderr, file=sys.stderr)
    return result


def test_two_directories_are_compared(load_main: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, main = ["--quick", "--models", "own_decoder", "--analyses", "head_statistics"], load_main("same_numbers")
    main.__globals__["subprocess"] = SimpleNamespace(run=run_script_in_fork)
    main([str(FOLDER.parent), *arguments])
    assert "unexplained differences: 0" in capsys.readouterr().out
