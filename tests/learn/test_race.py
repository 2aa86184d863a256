"""The race: fair to all entrants, the same numbers after any interruption, and robust to diverged seeds."""

import json
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rheoscope.files import LOCK_NAME
from rheoscope.learn import race_files
from rheoscope.learn.distributed_race import open_worker, run_distributed_race
from rheoscope.learn.race import (
    DEFAULT_MODE,
    TrainingMode,
    pack_trainer,
    packs_of_process,
    prefetch_batches,
    run_race,
    with_task_vocabulary,
)
from rheoscope.learn.race_models import load_race_model
from rheoscope.learn.race_plan import Race
from rheoscope.learn.race_report import ray_worker_count
from rheoscope.learn.race_result import race_result
from rheoscope.learn.time_limit import TimeLimit
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Batch, evaluate
from rheoscope.models.train import Process
from rheoscope.shapes import RheoscopeError
from tests.learn.cases import Letters, recipe, sentences
from tests.processes import run_in_fork


def small_race(**changes: Any) -> Race:
    return Race(recipe(), **{"mechanisms": ("tied",), "seeds": 2, "rates": (1e-2,)} | changes)


def files(out: Path) -> dict[str, bytes]:
    """All files of a race except durations and the lock."""
    paths = [
        file
        for file in sorted(out.rglob("*"))
        if file.is_file() and file.name not in (race_files.TIMES_FILE, LOCK_NAME)
    ]
    return {str(file.relative_to(out)): file.read_bytes() for file in paths}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("races") / "uninterrupted"
    run_race(small_race(), Letters(), out, "cpu")
    return out


# Fairness


@dataclass(frozen=True)
class RecordingLetters(Letters):
    """Letters that record the requested batches."""

    requests: list[tuple[int, int]] = field(default_factory=list)
    batches: dict[tuple[int, int], list[Batch]] = field(default_factory=dict)

    def batch(self, step: int, recipe: Recipe) -> Batch:
        batch = super().batch(step, recipe)
        self.requests.append((recipe.seed, step))
        self.batches.setdefault((recipe.seed, step), []).append(batch)
        return batch


def test_all_entrants_read_the_same_batches_in_the_same_order(uninterrupted: Path, tmp_path: Path) -> None:
    task = RecordingLetters()
    run_race(small_race(mechanisms=("metric",), rates=(1e-2, 1e-3)), task, tmp_path / "out", "cpu")
    steps = range(recipe().steps)
    per_pack = [(seed, step) for step in steps for seed in (0, 1)]
    packs = 2 * 2
    assert sorted(task.requests) == sorted([*per_pack * packs, (0, 0)])  # the additional one is for the fingerprint
    for step in steps:
        for seed in (0, 1):
            first, *others = task.batches[seed, step]
            assert all(torch.equal(first[0], other[0]) and torch.equal(first[1], other[1]) for other in others)
    assert not torch.equal(task.batches[0, 1][0][0], task.batches[1, 1][0][0])
    folder_alone, folder_with_others = (
        race_files.pack_folder(out, "untied", 1e-2) for out in (uninterrupted, tmp_path / "out")
    )
    assert files(folder_alone) == files(folder_with_others)  # rates share only compiled graphs


def test_all_entrants_have_the_same_budget(uninterrupted: Path) -> None:
    lines = list(race_files.read_all_logs(uninterrupted))
    lines_by_entrant = {name: [line for line in lines if line["entrant"] == name] for name in ("untied", "tied")}
    for key in ("seed", "step", "tokens", "rate"):
        assert [line[key] for line in lines_by_entrant["untied"]] == [line[key] for line in lines_by_entrant["tied"]]
    assert [line["step"] for line in lines_by_entrant["tied"]] == [0, 0, 3, 3, 6, 6]
    assert lines_by_entrant["tied"][-1]["tokens"] == 6 * 4 * 8
    assert lines_by_entrant["tied"][-1]["flops"] < lines_by_entrant["untied"][-1]["flops"]
    assert all(line["loss"] is not None and line["diverged"] is None for line in lines)


def test_entrants_alternate(tmp_path: Path) -> None:
    turns: list[str] = []
    run_race(
        small_race(),
        Letters(),
        tmp_path / "out",
        "cpu",
        on_progress=lambda tokens, total, pack_name: turns.append(pack_name),
    )
    assert turns == [*["untied at rate 0.01"] * 3, *["tied at rate 0.01"] * 3] * 2


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    run_race(
        small_race(),
        Letters(),
        tmp_path / "out",
        "cpu",
        on_progress=lambda tokens, total, pack_name: progress.append((tokens, total)),
    )
    assert progress[-1][0] == progress[-1][1] == 2 * 2 * 6 * 4 * 8


def test_packed_and_single_seeds_have_the_same_losses(uninterrupted: Path, tmp_path: Path) -> None:
    run_race(small_race(), Letters(), tmp_path / "out", "cpu", TrainingMode(packed=False))
    for single_line, other_line in zip(
        race_files.read_all_logs(uninterrupted), race_files.read_all_logs(tmp_path / "out"), strict=True
    ):
        for key in single_line:
            close = pytest.approx(other_line[key], rel=1e-4) if isinstance(other_line[key], float) else other_line[key]
            assert single_line[key] == close, key


def test_sentence_pairs_are_raced_in_packs(tmp_path: Path) -> None:
    """A learned mechanism, with padding that differs between seeds, equals one seed after another."""
    translator = recipe(form="encoder-decoder", steps=2, evaluate_every=2)
    race, log = Race(translator, ("metric_map",), 2, (), held_out=60), list[str]()
    for packed in (True, False):
        run_race(race, sentences(), tmp_path / str(packed), "cpu", TrainingMode(packed=packed), log=log.append)
    packed_losses, single_losses = (
        [line["loss"] for line in race_files.read_all_logs(tmp_path / str(packed))] for packed in (True, False)
    )
    assert packed_losses == pytest.approx(single_losses, rel=1e-4)
    assert log == []


def test_unpackable_models_are_logged_and_trained_one_by_one(tmp_path: Path) -> None:
    log: list[str] = []
    race = Race(recipe(position="buckets"), ("tied",), 2, ())
    run_race(race, Letters(), tmp_path / "out", "cpu", log=log.append)
    assert len(log) == 2
    assert log[0].startswith("untied: seeds are trained one after another (BucketTable has no packed form")
    assert len(list(race_files.read_all_logs(tmp_path / "out"))) == 12


# Resuming


def test_a_second_driver_is_refused_and_the_first_goes_on(uninterrupted: Path, tmp_path: Path) -> None:
    log: list[str] = []

    def start_second_driver(tokens: int, total: int, pack_name: str) -> None:
        drivers = (run_race, partial(run_distributed_race, workers=1)) if not log else ()
        for run in drivers:
            with pytest.raises(
                RheoscopeError, match=r"out is in use by process \d+ on .*, so wait until it ends"
            ) as error:
                run(small_race(), Letters(), tmp_path / "out", device="cpu")
            log.append(str(error.value))

    run_race(small_race(), Letters(), tmp_path / "out", "cpu", on_progress=start_second_driver)
    assert len(log) == 2
    assert files(tmp_path / "out") == files(uninterrupted)


class Stopped(Exception):
    pass


def stop_after(n_steps: int) -> Any:
    """A progress callback that stops a race after a number of steps."""
    progress: list[int] = []

    def on_progress(tokens: int, total: int, pack_name: str) -> None:
        progress.append(tokens)
        if len(progress) == n_steps:
            raise Stopped

    return on_progress


@pytest.mark.parametrize("n_steps", [3, 8])
def test_a_stopped_race_continues_to_the_same_files(n_steps: int, uninterrupted: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_race(small_race(), Letters(), tmp_path / "out", "cpu", on_progress=stop_after(n_steps))
    run_race(small_race(), Letters(), tmp_path / "out", "cpu")
    assert files(tmp_path / "out") == files(uninterrupted)


def test_packs_that_stay_on_the_device_give_the_same_files(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rheoscope.learn.race.has_free_memory", lambda device: True)
    run_race(small_race(), Letters(), tmp_path / "out", "cpu")
    assert files(tmp_path / "out") == files(uninterrupted)


@pytest.mark.parametrize("n_files", [1, 4])
def test_a_race_stopped_between_two_files_continues_to_the_same_files(
    n_files: int, uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that no log refers to, and a log whose previous state still exists."""
    n_written, write_file = [0], race_files.write_file

    def failing_write(path: Path, fill: Any) -> str:
        if n_written[0] == n_files:
            raise Stopped
        n_written[0] += 1
        return write_file(path, fill)

    monkeypatch.setattr(race_files, "write_file", failing_write)
    with pytest.raises(Stopped):
        run_race(small_race(), Letters(), tmp_path / "out", "cpu")
    monkeypatch.undo()
    run_race(small_race(), Letters(), tmp_path / "out", "cpu")
    assert files(tmp_path / "out") == files(uninterrupted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_race_continues_to_the_same_result(uninterrupted: Path, tmp_path: Path) -> None:
    out, progress = tmp_path / "out", iter(range(100))

    def on_progress(tokens: int, total: int, pack_name: str) -> None:
        if next(progress) == 7:
            os.kill(os.getpid(), signal.SIGKILL)

    outcome = run_in_fork(lambda: run_race(small_race(), Letters(), out, "cpu", on_progress=on_progress))
    assert outcome.returncode == -signal.SIGKILL, outcome.stderr
    assert race_files.last_step(race_files.read_log(race_files.pack_folder(out, "untied", 1e-2))) == 3
    run_race(small_race(), Letters(), out, "cpu")
    assert files(out) == files(uninterrupted)
    assert race_result(out).identical(race_result(uninterrupted))


def test_a_finished_race_is_not_run_again(uninterrupted: Path) -> None:
    times_before = {file: file.stat().st_mtime_ns for file in uninterrupted.rglob("*.safetensors")}
    run_race(small_race(), Letters(), uninterrupted, "cpu", on_progress=stop_after(1))
    assert times_before == {file: file.stat().st_mtime_ns for file in uninterrupted.rglob("*.safetensors")}


def test_entrants_may_join_later_and_nothing_else_may_change(uninterrupted: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_race(small_race(mechanisms=()), Letters(), out, "cpu")
    run_race(small_race(), Letters(), out, "cpu")
    assert files(out) == files(uninterrupted)
    for change, pattern in (
        ({"seeds": 3}, "seeds=2, now seeds=3"),
        ({"held_out": 9}, "held_out=100000, now held_out=9"),
    ):
        with pytest.raises(RheoscopeError, match=pattern):
            run_race(small_race(**change), Letters(), out, "cpu")
    with pytest.raises(RheoscopeError, match=r"clip=1\.0, now clip=0\.5"):
        run_race(Race(recipe(clip=0.5), ("tied",), 2, (1e-2,)), Letters(), out, "cpu")
    with pytest.raises(RheoscopeError, match="data="):
        run_race(small_race(), OtherLetters(), out, "cpu")


class OtherLetters(Letters):
    """The same letters, reversed."""

    def batch(self, step: int, recipe: Recipe) -> Batch:
        x, y = super().batch(step, recipe)
        return y.flip(-1).contiguous(), x.flip(-1).contiguous()


def test_a_folder_with_foreign_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RheoscopeError, match="contains files of other programs"):
        run_race(small_race(), Letters(), tmp_path, "cpu")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_missing_state_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_race(small_race(), Letters(), tmp_path / "out", "cpu", on_progress=stop_after(7))
    for file in (tmp_path / "out").rglob("state-*"):
        file.unlink()
    with pytest.raises(RheoscopeError, match="is missing, although the log refers to it"):
        run_race(small_race(), Letters(), tmp_path / "out", "cpu")


# Divergence


@dataclass(frozen=True)
class DivergingLetters(Letters):
    """Letters in which one seed has no targets at one step, so its loss is NaN."""

    def batch(self, step: int, recipe: Recipe) -> Batch:
        x, y = super().batch(step, recipe)
        return (x, torch.full_like(y, self.ignore_index)) if (recipe.seed, step) == (1, 4) else (x, y)

    def n_targets(self, batch: Batch) -> int:
        return int((batch[1] != self.ignore_index).sum())  # no targets: the loss is 0 / 0


def test_a_diverged_seed_is_logged_and_the_others_continue(uninterrupted: Path, tmp_path: Path) -> None:
    run_race(small_race(), DivergingLetters(), tmp_path / "out", "cpu")
    expected_lines = {
        (line["entrant"], line["seed"], line["step"]): line for line in race_files.read_all_logs(uninterrupted)
    }
    for line in race_files.read_all_logs(tmp_path / "out"):
        if line["seed"] == 1 and line["step"] == 6:
            assert line["diverged"] == 5
            assert line["loss"] is None
            assert line["train loss"] is None
        else:
            assert line == expected_lines[line["entrant"], line["seed"], line["step"]]
    result = race_result(tmp_path / "out")
    assert result.diverged.values.tolist() == [1, 1]
    assert json.loads(json.dumps(result.verdict.values.tolist())) == ["", "unclear"]


def test_training_ends_when_all_seeds_diverged(tmp_path: Path) -> None:
    steps: list[str] = []
    race = Race(recipe(evaluate_every=2), (), 1, (1e-2,))

    @dataclass(frozen=True)
    class AllDivergingLetters(DivergingLetters):
        def batch(self, step: int, recipe: Recipe) -> Batch:
            x, y = Letters.batch(self, step, recipe)
            return (x, torch.full_like(y, self.ignore_index)) if step == 1 else (x, y)

    run_race(
        race,
        AllDivergingLetters(),
        tmp_path / "out",
        "cpu",
        on_progress=lambda tokens, total, pack_name: steps.append(pack_name),
    )
    assert len(steps) == 2
    lines = list(race_files.read_all_logs(tmp_path / "out"))
    assert [line["diverged"] for line in lines] == [None, 2, 2, 2]


# Prefetching


def test_batches_are_read_one_step_ahead_in_order() -> None:
    def read(step: int) -> Any:
        return (torch.tensor([[step]]), torch.tensor([[step]])), torch.ones(1)

    with ThreadPoolExecutor(1) as reader:
        batches: Iterator[Any] = prefetch_batches(reader, read, 3, 7)
        assert [(step, int(batch[0][0])) for step, batch in batches] == [(3, 3), (4, 4), (5, 5), (6, 6)]


def test_a_full_disk_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another thread writes."""

    def raise_disk_full(tensors: Any, file: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(race_files, "save_tensors", raise_disk_full)
    with pytest.raises(RheoscopeError, match=r"No space left on device; .*run the same command to continue"):
        run_race(small_race(), Letters(), tmp_path / "out", "cpu")
    assert not list((tmp_path / "out").rglob("*.safetensors"))


# Models and workers


def test_loaded_models_have_the_logged_losses(uninterrupted: Path, tmp_path: Path) -> None:
    """The loss of each loaded model equals the logged one, packed or not."""
    run_race(small_race(), Letters(), tmp_path / "alone", "cpu", TrainingMode(packed=False))
    for out in (uninterrupted, tmp_path / "alone"):
        final_losses = {(line["entrant"], line["seed"]): line["loss"] for line in race_files.read_all_logs(out)}
        for entrant in ("untied", "tied"):
            for seed in (0, 1):
                metrics = evaluate(load_race_model(out, entrant, seed), Letters(), recipe(), torch.device("cpu"))
                assert metrics["loss"] == pytest.approx(final_losses[entrant, seed], rel=1e-5)


def test_unknown_models_are_refused(uninterrupted: Path) -> None:
    for name, seed, rate in (("metric", 0, None), ("tied", 2, None), ("tied", 0, 3.0)):
        with pytest.raises(RheoscopeError, match="has the entrants untied, tied with seeds 0 to 1"):
            load_race_model(uninterrupted, name, seed, rate)


def test_processes_share_the_entrants_of_a_race(uninterrupted: Path, tmp_path: Path) -> None:
    """Each process takes its own entrants at all rates. Together they write the files of a single process."""
    out, entrants_by_process = tmp_path / "out", []
    race_files.store_or_check_race(out, small_race().to_json(Letters()))
    for rank in (1, 0):
        process = Process(torch.device("cpu"), rank, world_size=2)
        with pack_trainer(small_race(), Letters(), out, process, DEFAULT_MODE) as trainer:
            trainer.run(own_packs := packs_of_process(small_race().packs(), process), TimeLimit())
        entrants_by_process.append([pack.entrant for pack in own_packs])
    assert entrants_by_process == [["tied"], ["untied"]]
    assert files(out) == files(uninterrupted)


def test_packs_one_by_one_in_any_order_give_the_same_files(uninterrupted: Path, tmp_path: Path) -> None:
    """The work of a cluster's worker, in this process."""
    out = tmp_path / "out"
    race = with_task_vocabulary(small_race(), Letters())
    race_files.store_or_check_race(out, race.to_json(Letters()))
    worker = open_worker(race, pickle.loads(pickle.dumps(Letters())), out, "cpu", DEFAULT_MODE)
    with worker.exit_stack:
        for pack in reversed(race.packs()):
            assert not pack.is_finished(out)
            assert worker.work(None, pickle.loads(pickle.dumps(pack)), None).pack == pack
            assert pack.is_finished(out)
    assert worker.facts["device"] == "cpu"
    assert files(out) == files(uninterrupted)


def test_a_missing_ray_is_an_error_with_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RheoscopeError, match=r"pip install 'rheoscope\[corpus\]', or --workers 0"):
        run_distributed_race(small_race(), Letters(), tmp_path / "out", workers=2)


def test_torchrun_and_ray_cannot_be_combined(uninterrupted: Path) -> None:
    process = Process(torch.device("cpu"), 0, world_size=2)
    assert ray_worker_count(None, None, "cpu", process) == 0
    with pytest.raises(RheoscopeError, match="cannot be combined with torchrun"):
        ray_worker_count(2, None, "cpu", process)


def test_the_modes_of_torch_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    modes: list[bool] = []
    on_progress = lambda *arguments: modes.append(torch.are_deterministic_algorithms_enabled())  # noqa: E731
    mode = TrainingMode(deterministic=True)
    run_race(small_race(mechanisms=()), Letters(), tmp_path / "out", "cpu", mode, on_progress)
    assert all(modes)
    assert not torch.are_deterministic_algorithms_enabled()
