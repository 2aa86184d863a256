"""Checkpoints of a run: intact after a kill between two renames, the previous one if the last is damaged, full disks."""

import errno
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rheoscope.models import checkpoint, training_state
from rheoscope.models.checkpoint import load_network
from rheoscope.models.vocabulary import character_tokenizer
from rheoscope.shapes import RheoscopeError
from tests.models.runs import prose, run, run_files, small
from tests.processes import Fork

RECIPE = small(steps=6)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: Any) -> Path:
    """A finished run with checkpoints at 2, 4 and 6."""
    out = tmp_path_factory.mktemp("whole")
    run(out, RECIPE)
    return out


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: Any) -> Path:
    """A run stopped after step 5: 4 is the last checkpoint and 2 the previous one."""
    out = tmp_path_factory.mktemp("stopped")
    run(out, RECIPE, stop_at=5)
    assert [training_state.read_progress(out / name).step for name in ("last", "before")] == [4, 2]
    return out


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run."""
    return shutil.copytree(stopped_once, tmp_path / "out")


def make_incomplete(folder: Path) -> None:
    """Remove half of the files of a folder."""
    (folder / "progress.json").unlink()
    (folder / "optimiser.safetensors").unlink()


# States of the folder when a run is killed while it stores a checkpoint


def while_writing(out: Path) -> None:
    shutil.copytree(out / "last", out / ".partial")
    make_incomplete(out / ".partial")


def before_the_renames(out: Path) -> None:
    shutil.copytree(out / "last", out / ".partial")


def while_the_previous_is_removed(out: Path) -> None:
    before_the_renames(out)
    (out / "before" / "model.safetensors").unlink()


def after_the_previous_is_removed(out: Path) -> None:
    before_the_renames(out)
    shutil.rmtree(out / "before")


def between_the_renames(out: Path) -> None:
    after_the_previous_is_removed(out)
    (out / "last").rename(out / "before")


def with_temporary_files_of_the_best_model(out: Path) -> None:
    for name in (".model-abc.safetensors", ".config-abc.json", ".figures-abc.json", ".log-abc.jsonl", ".tmpa1B2c3"):
        (out / name).write_text("half")


MOMENTS = [
    while_writing, before_the_renames, while_the_previous_is_removed, after_the_previous_is_removed, between_the_renames,
    with_temporary_files_of_the_best_model,
]  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_a_run_killed_while_it_stores_a_checkpoint_resumes_exactly(
    moment: Callable[[Path], None], stopped: Path, finished: Path
) -> None:
    moment(stopped)
    assert training_state.last_checkpoint_step(stopped) == 4
    run(stopped, RECIPE)
    assert run_files(stopped) == run_files(finished)
    assert [file.name for file in stopped.iterdir() if file.name.startswith(".")] == []


def test_only_temporary_files_are_removed(tmp_path: Path) -> None:
    """The names that `atomic_file` and safetensors give to unfinished files, and no others."""
    temporary = [".model-abc.safetensors", ".log-x1.jsonl", ".tmpAb3xY9", ".tmp000000"]
    foreign = [".tmp", ".tmpAb3xY", ".tmpAb3xY99", ".tmp-notes", "tmpAb3xY9", "notes.txt", "model.safetensors"]
    for name in temporary + foreign:
        (tmp_path / name).write_text(name)
    (tmp_path / ".tmpfolder").mkdir()
    (tmp_path / ".tmpdir123").mkdir()
    training_state.remove_partial_files(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {*foreign, ".tmpfolder", ".tmpdir123"}


def write_until_killed(file: Path) -> None:
    """Write safetensors over and over, until the test kills the process."""
    while True:
        checkpoint.save_tensors({"weight": torch.zeros(5_000_000)}, file)


def test_a_killed_safetensors_write_is_cleaned_up(tmp_path: Path) -> None:
    """The process is killed as soon as the temporary file of safetensors exists."""
    with Fork(partial(write_until_killed, tmp_path / ".model-abc.safetensors")) as child:
        deadline = time.monotonic() + 60
        while not (unfinished := list(tmp_path.glob(".tmp*"))):
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        os.kill(child.pid, signal.SIGKILL)
        assert child.done().returncode == -signal.SIGKILL
    assert all(training_state.SAFETENSORS_TEMPORARY.fullmatch(file.name) for file in unfinished)
    training_state.remove_partial_files(tmp_path)
    assert list(tmp_path.iterdir()) == []


# Damage to the last checkpoint


def truncate(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / name
        file.write_bytes(file.read_bytes()[:-7])

    return damage


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def remove_progress(folder: Path) -> None:
    (folder / "progress.json").unlink()


DAMAGE = {
    "model": (truncate("model.safetensors"), r"model.safetensors has [\d,]+ of [\d,]+ bytes"),
    "optimiser": (truncate("optimiser.safetensors"), "optimiser.safetensors has"),
    "config": (truncate("config.json"), "config.json has"),
    "progress": (truncate("progress.json"), "progress.json is missing or damaged"),
    "empty": (empty_weights, "model.safetensors has 0 of"),
    "none": (remove_progress, "progress.json is missing or damaged"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint_is_replaced_by_the_previous_one(kind: str, stopped: Path, finished: Path) -> None:
    damage, pattern = DAMAGE[kind]
    damage(stopped / "last")
    messages: list[str] = []
    run(stopped, RECIPE, log=messages.append)
    assert len(messages) == 2
    assert re.search(f"last is damaged .{pattern}.*; resuming from the previous checkpoint", messages[0])
    assert messages[1] == f"resuming {stopped} at step 2 of 6"
    assert run_files(stopped) == run_files(finished)


def test_a_damaged_checkpoint_never_replaces_an_intact_one(stopped: Path) -> None:
    empty_weights(stopped / "last")
    run(stopped, RECIPE, stop_at=4)
    assert [training_state.read_progress(stopped / name).step for name in ("last", "before")] == [4, 2]
    assert training_state.checkpoint_damage(stopped / "last") is None


def test_without_an_intact_checkpoint_the_run_raises_one_line(stopped: Path) -> None:
    empty_weights(stopped / "last")
    empty_weights(stopped / "before")
    with pytest.raises(
        RheoscopeError, match=r"last is damaged .* no intact checkpoint before it; remove it .*; type out="
    ):
        run(stopped, RECIPE)


# A full disk


class FullDisk:
    """A `save_tensors` that raises a full disk from its n-th call on, after a partial write."""

    def __init__(self, after: int) -> None:
        self.calls_left, self.save = after, checkpoint.save_tensors

    def __call__(self, tensors: Any, file: Path) -> None:
        self.calls_left -= 1
        if self.calls_left >= 0:
            return self.save(tensors, file)
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("calls", "step"), [(0, 0), (1, 0), (2, 0), (3, 2), (4, 2), (5, 2), (6, 4)])
def test_a_full_disk_keeps_the_last_checkpoint(
    calls: int, step: int, tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each evaluation writes three files of tensors: the best model, the last model and the optimiser."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_tensors", FullDisk(calls))
        status = f"the checkpoint of step {step} is kept" if step else "there is no checkpoint yet"
        pattern = rf"cannot write to .* \(No space left on device\); {status}; free some space"
        with pytest.raises(RheoscopeError, match=pattern):
            run(out, RECIPE)
    assert training_state.last_checkpoint_step(out) == step
    assert not [file for file in out.rglob("*") if file.name.startswith(".")]
    if calls:
        assert load_network(out)[0].config == RECIPE.config
    run(out, RECIPE)
    assert run_files(out) == run_files(finished)


def test_a_full_disk_while_the_log_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_disk_full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", raise_disk_full)
    with pytest.raises(RheoscopeError, match=r"cannot write to .* \(No space left on device\); there is no checkpoint"):
        run(tmp_path / "out", RECIPE)


def test_a_file_in_place_of_the_parent_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RheoscopeError, match=r"cannot write .*file/out: .*file is a file; type "):
        run(tmp_path / "file" / "out", RECIPE)


# Another run in the same directory


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        (
            {"rate": 0.5},
            r"holds a run with rate=0.01, got rate=0.5; use the same recipe or another directory; type out=",
        ),
        ({"steps": 3}, "is at step 6 of 6, got steps=3; type steps=7"),
        ({"seed": 1}, "seed=0, got seed=1"),
        ({"betas": (0.8, 0.9)}, r"betas=\[0.9, 0.95\], got betas=\[0.8, 0.9\]"),
        ({"depth": 3}, "holds a run with depth=2, got depth=3"),
        ({"dropout": 0.0}, "holds a run with dropout=0.2, got dropout=0.0"),
    ],
)
def test_another_recipe_is_refused(changes: dict[str, Any], pattern: str, finished: Path) -> None:
    before = run_files(finished), (finished / "recipe.json").read_bytes()
    with pytest.raises(RheoscopeError, match=pattern):
        run(finished, RECIPE.with_changes(**changes))
    assert (run_files(finished), (finished / "recipe.json").read_bytes()) == before


def test_a_recipe_may_change_before_the_first_checkpoint(tmp_path: Path) -> None:
    run(tmp_path, RECIPE, stop_at=1)
    run(tmp_path, RECIPE.with_changes(rate=0.005))
    assert json.loads((tmp_path / "recipe.json").read_text())["rate"] == 0.005


def test_another_vocabulary_is_refused(stopped: Path) -> None:
    task = prose()
    object.__setattr__(task.corpus, "vocabulary", 12)
    with pytest.raises(
        RheoscopeError, match="was trained with 11 tokens, but the data has 12; use the data of that run"
    ):
        run(stopped, RECIPE, task)


def test_another_tokenizer_of_the_same_size_is_refused(tmp_path: Path) -> None:
    for name, text in (("one.json", "abcdefghijk"), ("other.json", "bcdefghijkl")):
        character_tokenizer([text], []).save(str(tmp_path / name))
    run(tmp_path / "out", RECIPE, stop_at=3, tokenizer=tmp_path / "one.json")
    with pytest.raises(RheoscopeError, match=r"was trained with another tokenizer than .*other.json"):
        run(tmp_path / "out", RECIPE, tokenizer=tmp_path / "other.json")
    run(tmp_path / "out", RECIPE, tokenizer=tmp_path / "one.json")
    assert load_network(tmp_path / "out")[1].get_vocab_size() == 11


def test_a_checkpoint_with_another_config_is_refused(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    (tmp_path / "out" / "recipe.json").unlink()
    with pytest.raises(RheoscopeError, match="holds a model with another config"):
        run(tmp_path / "out", RECIPE.with_changes(depth=1))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"config": 3}', "{}"])
def test_an_invalid_stored_recipe_is_refused_in_one_line(content: str, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "out")
    (tmp_path / "out" / "recipe.json").write_text(content)
    with pytest.raises(
        RheoscopeError, match=r"recipe.json is not the recipe of a run \(.*\); remove it or choose another directory"
    ):
        run(tmp_path / "out", RECIPE)
