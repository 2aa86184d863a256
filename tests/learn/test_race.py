"""The race: fair to all, the same numbers whatever kills it, and one that diverges leaves the others alone."""

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
from rheoscope.learn.distributed_race import is_finished, open_worker, run_distributed_race
from rheoscope.learn.race import (
    DEFAULT_MODE,
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
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Batch, evaluate
from rheoscope.models.train import Process
from rheoscope.shapes import RheoscopeError
from tests.learn.cases import Letters, recipe, sentences
from tests.processes import run_in_fork


def small(**more: Any) -> Race:
    return Race(recipe(), **{"mechanisms": ("tied",), "seeds": 2, "rates": (1e-2,)} | more)


def files(out: Path) -> dict[str, bytes]:
    """All that counts: everything but times and who worked here last."""
    there = [
        file
        for file in sorted(out.rglob("*"))
        if file.is_file() and file.name not in (race_files.TIMES_FILE, LOCK_NAME)
    ]
    return {str(file.relative_to(out)): file.read_bytes() for file in there}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("races") / "undisturbed"
    run_race(small(), Letters(), out, "cpu")
    return out


# Fairness


@dataclass(frozen=True)
class Watched(Letters):
    """Letters that remember what was asked of them."""

    asked: list[tuple[int, int]] = field(default_factory=list)
    handed: dict[tuple[int, int], list[Batch]] = field(default_factory=dict)

    def batch(self, step: int, recipe: Recipe) -> Batch:
        made = super().batch(step, recipe)
        self.asked.append((recipe.seed, step))
        self.handed.setdefault((recipe.seed, step), []).append(made)
        return made


def test_all_entrants_read_the_same_batches_in_the_same_order(undisturbed: Path, tmp_path: Path) -> None:
    task = Watched()
    run_race(small(mechanisms=("metric",), rates=(1e-2, 1e-3)), task, tmp_path / "out", "cpu")
    steps = range(recipe().steps)
    per_pack = [(seed, step) for step in steps for seed in (0, 1)]
    packs = 2 * 2
    assert sorted(task.asked) == sorted([*per_pack * packs, (0, 0)])  # and once for the fingerprint
    for step in steps:
        for seed in (0, 1):
            first, *others = task.handed[seed, step]
            assert all(torch.equal(first[0], other[0]) and torch.equal(first[1], other[1]) for other in others)
    assert not torch.equal(task.handed[0, 1][0][0], task.handed[1, 1][0][0])
    one, among = (race_files.pack_folder(out, "untied", 1e-2) for out in (undisturbed, tmp_path / "out"))
    assert files(one) == files(among)  # rates share what is compiled, and nothing else


def test_all_have_the_same_budget_and_the_same_start(undisturbed: Path) -> None:
    lines = list(race_files.read_all_logs(undisturbed))
    by = {name: [line for line in lines if line["entrant"] == name] for name in ("untied", "tied")}
    for key in ("seed", "step", "tokens", "rate"):
        assert [line[key] for line in by["untied"]] == [line[key] for line in by["tied"]]
    assert [line["step"] for line in by["tied"]] == [0, 0, 3, 3, 6, 6]
    assert by["tied"][-1]["tokens"] == 6 * 4 * 8
    assert by["tied"][-1]["flops"] < by["untied"][-1]["flops"]
    assert all(line["loss"] is not None and line["diverged"] is None for line in lines)


def test_entrants_take_turns(tmp_path: Path) -> None:
    turns: list[str] = []
    run_race(small(), Letters(), tmp_path / "out", "cpu", on_progress=lambda tokens, total, what: turns.append(what))
    assert turns == [*["untied at 0.01"] * 3, *["tied at 0.01"] * 3] * 2


def test_the_bar_ends_at_the_whole(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    run_race(
        small(),
        Letters(),
        tmp_path / "out",
        "cpu",
        on_progress=lambda tokens, total, what: heard.append((tokens, total)),
    )
    assert heard[-1][0] == heard[-1][1] == 2 * 2 * 6 * 4 * 8


def test_packed_or_one_after_another_the_losses_are_the_same(undisturbed: Path, tmp_path: Path) -> None:
    run_race(small(), Letters(), tmp_path / "out", "cpu", packed=False)
    for one, other in zip(
        race_files.read_all_logs(undisturbed), race_files.read_all_logs(tmp_path / "out"), strict=True
    ):
        for key in one:
            close = pytest.approx(other[key], rel=1e-4) if isinstance(other[key], float) else other[key]
            assert one[key] == close, key


def test_sentence_pairs_are_raced_in_packs(tmp_path: Path) -> None:
    """A mechanism that learns, under padding that differs from seed to seed: as one seed after another."""
    asked, said = Race(recipe(form="encoder-decoder", steps=2, evaluate_every=2), ("metric_map",), 2, ()), []
    for packed in (True, False):
        run_race(asked, sentences(), tmp_path / str(packed), "cpu", packed=packed, log=said.append)
    one, other = (
        [line["loss"] for line in race_files.read_all_logs(tmp_path / str(packed))] for packed in (True, False)
    )
    assert one == pytest.approx(other, rel=1e-4)
    assert said == []


def test_what_cannot_be_packed_is_said_and_raced_all_the_same(tmp_path: Path) -> None:
    said: list[str] = []
    asked = Race(recipe(position="buckets"), ("tied",), 2, ())
    run_race(asked, Letters(), tmp_path / "out", "cpu", log=said.append)
    assert len(said) == 2
    assert "untied: no packed form of BucketTable" in said[0]
    assert said[0].endswith("its seeds are trained one after another")
    assert len(list(race_files.read_all_logs(tmp_path / "out"))) == 12


# Going on


def test_a_second_driver_is_refused_and_the_first_goes_on(undisturbed: Path, tmp_path: Path) -> None:
    said: list[str] = []

    def second(tokens: int, total: int, what: str) -> None:
        drivers = (run_race, partial(run_distributed_race, workers=1)) if not said else ()
        for drive in drivers:
            with pytest.raises(
                RheoscopeError, match=r"out is in use by process \d+ on .*, so wait until it ends"
            ) as told:
                drive(small(), Letters(), tmp_path / "out", device="cpu")
            said.append(str(told.value))

    run_race(small(), Letters(), tmp_path / "out", "cpu", on_progress=second)
    assert len(said) == 2
    assert files(tmp_path / "out") == files(undisturbed)


class Stopped(Exception):
    pass


def stopping(at: int) -> Any:
    """Stops a race after so many steps."""
    heard: list[int] = []

    def tell(tokens: int, total: int, what: str) -> None:
        heard.append(tokens)
        if len(heard) == at:
            raise Stopped

    return tell


@pytest.mark.parametrize("at", [3, 8])
def test_a_race_that_is_stopped_goes_on_to_the_same_files(at: int, undisturbed: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_race(small(), Letters(), tmp_path / "out", "cpu", on_progress=stopping(at))
    run_race(small(), Letters(), tmp_path / "out", "cpu")
    assert files(tmp_path / "out") == files(undisturbed)


def test_where_packs_stay_on_the_device_the_files_are_the_same(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rheoscope.learn.race.has_free_memory", lambda device: True)
    run_race(small(), Letters(), tmp_path / "out", "cpu")
    assert files(tmp_path / "out") == files(undisturbed)


@pytest.mark.parametrize("at", [1, 4])
def test_killed_between_two_files_it_goes_on_to_the_same(
    at: int, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that no log names, a log whose older state is still there."""
    written, write = [0], race_files.write_file

    def dying(path: Path, fill: Any) -> str:
        if written[0] == at:
            raise Stopped
        written[0] += 1
        return write(path, fill)

    monkeypatch.setattr(race_files, "write_file", dying)
    with pytest.raises(Stopped):
        run_race(small(), Letters(), tmp_path / "out", "cpu")
    monkeypatch.undo()
    run_race(small(), Letters(), tmp_path / "out", "cpu")
    assert files(tmp_path / "out") == files(undisturbed)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_for_real_it_goes_on_to_the_same_table(undisturbed: Path, tmp_path: Path) -> None:
    out, heard = tmp_path / "out", iter(range(100))

    def tell(tokens: int, total: int, what: str) -> None:
        if next(heard) == 7:
            os.kill(os.getpid(), signal.SIGKILL)

    killed = run_in_fork(lambda: run_race(small(), Letters(), out, "cpu", on_progress=tell))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert race_files.last_step(race_files.read_log(race_files.pack_folder(out, "untied", 1e-2))) == 3
    run_race(small(), Letters(), out, "cpu")
    assert files(out) == files(undisturbed)
    assert race_result(out).identical(race_result(undisturbed))


def test_a_finished_race_is_not_run_again(undisturbed: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in undisturbed.rglob("*.safetensors")}
    run_race(small(), Letters(), undisturbed, "cpu", on_progress=stopping(1))
    assert before == {file: file.stat().st_mtime_ns for file in undisturbed.rglob("*.safetensors")}


def test_entrants_may_join_later_and_nothing_else_may_change(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_race(small(mechanisms=()), Letters(), out, "cpu")
    run_race(small(), Letters(), out, "cpu")
    assert files(out) == files(undisturbed)
    for change, told in (({"seeds": 3}, "seeds=2, now seeds=3"), ({"held_out": 9}, "held_out=100000, now held_out=9")):
        with pytest.raises(RheoscopeError, match=told):
            run_race(small(**change), Letters(), out, "cpu")
    with pytest.raises(RheoscopeError, match=r"clip=1\.0, now clip=0\.5"):
        run_race(Race(recipe(clip=0.5), ("tied",), 2, (1e-2,)), Letters(), out, "cpu")
    with pytest.raises(RheoscopeError, match="data="):
        run_race(small(), OtherLetters(), out, "cpu")


class OtherLetters(Letters):
    """The same letters, read from right to left."""

    def batch(self, step: int, recipe: Recipe) -> Batch:
        x, y = super().batch(step, recipe)
        return y.flip(-1).contiguous(), x.flip(-1).contiguous()


def test_a_folder_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RheoscopeError, match="holds other files"):
        run_race(small(), Letters(), tmp_path, "cpu")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_state_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run_race(small(), Letters(), tmp_path / "out", "cpu", on_progress=stopping(7))
    for file in (tmp_path / "out").rglob("state-*"):
        file.unlink()
    with pytest.raises(RheoscopeError, match="is gone"):
        run_race(small(), Letters(), tmp_path / "out", "cpu")


# Divergence


@dataclass(frozen=True)
class Poisoned(Letters):
    """Letters of which one seed, at one step, is told to predict what is not in its vocabulary: its loss is no number."""

    def batch(self, step: int, recipe: Recipe) -> Batch:
        x, y = super().batch(step, recipe)
        return (x, torch.full_like(y, self.ignore_index)) if (recipe.seed, step) == (1, 4) else (x, y)

    def n_targets(self, batch: Batch) -> int:
        return int((batch[1] != self.ignore_index).sum())  # none: 0 / 0


def test_a_seed_that_diverges_is_told_and_the_others_go_on(undisturbed: Path, tmp_path: Path) -> None:
    run_race(small(), Poisoned(), tmp_path / "out", "cpu")
    whole = {(line["entrant"], line["seed"], line["step"]): line for line in race_files.read_all_logs(undisturbed)}
    for line in race_files.read_all_logs(tmp_path / "out"):
        if line["seed"] == 1 and line["step"] == 6:
            assert line["diverged"] == 5
            assert line["loss"] is None
            assert line["train loss"] is None
        else:
            assert line == whole[line["entrant"], line["seed"], line["step"]]
    found = race_result(tmp_path / "out")
    assert found.diverged.values.tolist() == [1, 1]
    assert json.loads(json.dumps(found.verdict.values.tolist())) == ["", "cannot tell"]


def test_where_all_seeds_diverged_nothing_more_is_trained(tmp_path: Path) -> None:
    steps: list[str] = []
    asked = Race(recipe(evaluate_every=2), (), 1, (1e-2,))

    @dataclass(frozen=True)
    class AllPoisoned(Poisoned):
        def batch(self, step: int, recipe: Recipe) -> Batch:
            x, y = Letters.batch(self, step, recipe)
            return (x, torch.full_like(y, self.ignore_index)) if step == 1 else (x, y)

    run_race(asked, AllPoisoned(), tmp_path / "out", "cpu", on_progress=lambda tokens, total, what: steps.append(what))
    assert len(steps) == 2
    lines = list(race_files.read_all_logs(tmp_path / "out"))
    assert [line["diverged"] for line in lines] == [None, 2, 2, 2]


# Reading ahead


def test_batches_are_read_one_step_ahead_in_order() -> None:
    def read(at: int) -> Any:
        return (torch.tensor([[at]]), torch.tensor([[at]])), torch.ones(1)

    with ThreadPoolExecutor(1) as reader:
        found: Iterator[Any] = prefetch_batches(reader, read, 3, 7)
        assert [(at, int(work[0][0])) for at, work in found] == [(3, 3), (4, 4), (5, 5), (6, 6)]


def test_a_disk_that_is_full_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is written by another thread too."""

    def full(tensors: Any, file: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(race_files, "save_tensors", full)
    with pytest.raises(RheoscopeError, match=r"No space left on device.*type the same command to go on"):
        run_race(small(), Letters(), tmp_path / "out", "cpu")
    assert not list((tmp_path / "out").rglob("*.safetensors"))


# Its models


def test_models_of_a_race_are_what_was_trained(undisturbed: Path, tmp_path: Path) -> None:
    """The loss of each, computed by itself, is the one in the log; packed or not."""
    run_race(small(), Letters(), tmp_path / "alone", "cpu", packed=False)
    for out in (undisturbed, tmp_path / "alone"):
        last = {(line["entrant"], line["seed"]): line["loss"] for line in race_files.read_all_logs(out)}
        for entrant in ("untied", "tied"):
            for seed in (0, 1):
                found = evaluate(load_race_model(out, entrant, seed), Letters(), recipe(), torch.device("cpu"))
                assert found["loss"] == pytest.approx(last[entrant, seed], rel=1e-5)


def test_models_that_are_not_there_are_refused(undisturbed: Path) -> None:
    for name, seed, rate in (("metric", 0, None), ("tied", 2, None), ("tied", 0, 3.0)):
        with pytest.raises(RheoscopeError, match="has untied, tied with seeds 0 to 1"):
            load_race_model(undisturbed, name, seed, rate)


def test_processes_share_a_race(undisturbed: Path, tmp_path: Path) -> None:
    """Each takes entrants of its own, at all their rates; together they write what one would."""
    out, seen = tmp_path / "out", []
    race_files.store_or_check_race(out, small().to_json(Letters()))
    for rank in (1, 0):
        place = Process(torch.device("cpu"), rank, world_size=2)
        with pack_trainer(small(), Letters(), out, place, DEFAULT_MODE) as here:
            here.run(mine := packs_of_process(small().packs(), place))
        seen.append([pack.entrant for pack in mine])
    assert seen == [["tied"], ["untied"]]
    assert files(out) == files(undisturbed)


def test_packs_one_by_one_in_any_order_give_the_same_files(undisturbed: Path, tmp_path: Path) -> None:
    """What a worker of a cluster does, in this process."""
    out = tmp_path / "out"
    asked = with_task_vocabulary(small(), Letters())
    race_files.store_or_check_race(out, asked.to_json(Letters()))
    racer = open_worker(asked, pickle.loads(pickle.dumps(Letters())), out, "cpu", DEFAULT_MODE)
    with racer.exit_stack:
        for pack in reversed(asked.packs()):
            assert not is_finished(out, pack)
            assert racer.work(None, pickle.loads(pickle.dumps(pack)), None).pack == pack
            assert is_finished(out, pack)
    assert racer.facts["device"] == "cpu"
    assert files(out) == files(undisturbed)


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RheoscopeError, match=r"pip install 'rheoscope\[corpus\]', or --workers 0"):
        run_distributed_race(small(), Letters(), tmp_path / "out", workers=2)


def test_torchrun_and_ray_are_not_both(undisturbed: Path) -> None:
    place = Process(torch.device("cpu"), 0, world_size=2)
    assert ray_worker_count(None, None, "cpu", place) == 0
    with pytest.raises(RheoscopeError, match="torchrun and Ray both share out a race"):
        ray_worker_count(2, None, "cpu", place)


def test_what_a_race_asks_of_torch_it_gives_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    seen: list[bool] = []
    tell = lambda *told: seen.append(torch.are_deterministic_algorithms_enabled())  # noqa: E731
    run_race(small(mechanisms=()), Letters(), tmp_path / "out", "cpu", deterministic=True, on_progress=tell)
    assert all(seen)
    assert not torch.are_deterministic_algorithms_enabled()
