"""Checkpoints: whole whatever kills a run between two renames, the one before where the last is damaged, a full disk."""

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rheoscope.models import checkpoint, training_state
from rheoscope.models.checkpoint import load_network
from rheoscope.models.vocabulary import character_tokenizer
from rheoscope.shapes import RheoscopeError
from tests.models.runs import kept, prose, run, small

RECIPE = small(steps=6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> Path:
    """A run to the end: checkpoints at 2, 4 and 6."""
    out = tmp_path_factory.mktemp("whole")
    run(out, RECIPE)
    return out


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was stopped after step 5: 4 is the last checkpoint, 2 the one before."""
    out = tmp_path / "out"
    run(out, RECIPE, stop_at=5)
    assert [training_state.read_progress(out / name).step for name in ("last", "before")] == [4, 2]
    return out


def half(folder: Path) -> None:
    """A folder of which half is written, or half is removed."""
    (folder / "progress.json").unlink()
    (folder / "optimiser.safetensors").unlink()


# What the folder may look like when a run is killed while it keeps a checkpoint


def while_writing(out: Path) -> None:
    shutil.copytree(out / "last", out / ".partial")
    half(out / ".partial")


def whole_and_not_yet_moved(out: Path) -> None:
    shutil.copytree(out / "last", out / ".partial")


def while_the_oldest_is_removed(out: Path) -> None:
    whole_and_not_yet_moved(out)
    (out / "before" / "model.safetensors").unlink()


def once_the_oldest_is_gone(out: Path) -> None:
    whole_and_not_yet_moved(out)
    shutil.rmtree(out / "before")


def between_the_renames(out: Path) -> None:
    once_the_oldest_is_gone(out)
    (out / "last").rename(out / "before")


def with_files_of_the_best_model_begun(out: Path) -> None:
    for name in (".model-abc.safetensors", ".config-abc.json", ".figures-abc.json", ".log-abc.jsonl"):
        (out / name).write_text("half")


MOMENTS = [
    while_writing, whole_and_not_yet_moved, while_the_oldest_is_removed, once_the_oldest_is_gone, between_the_renames,
    with_files_of_the_best_model_begun,
]  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_killed_while_it_keeps(moment: Callable[[Path], None], stopped: Path, whole: Path) -> None:
    moment(stopped)
    assert training_state.last_checkpoint_step(stopped) == 4
    run(stopped, RECIPE)
    assert kept(stopped) == kept(whole)
    assert [file.name for file in stopped.iterdir() if file.name.startswith(".")] == []


# What a disk or a person may do to the last checkpoint


def cut(name: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        file = folder / name
        file.write_bytes(file.read_bytes()[:-7])

    return damage


def emptied(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def without_progress(folder: Path) -> None:
    (folder / "progress.json").unlink()


DAMAGE = {
    "model": (cut("model.safetensors"), r"model.safetensors has [\d,]+ bytes of [\d,]+"),
    "optimiser": (cut("optimiser.safetensors"), "optimiser.safetensors has"),
    "config": (cut("config.json"), "config.json has"),
    "progress": (cut("progress.json"), "progress.json is missing or broken"),
    "empty": (emptied, "model.safetensors has 0 bytes of"),
    "none": (without_progress, "progress.json is missing or broken"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_the_checkpoint_before_is_used(kind: str, stopped: Path, whole: Path) -> None:
    damage, says = DAMAGE[kind]
    damage(stopped / "last")
    said: list[str] = []
    run(stopped, RECIPE, log=said.append)
    assert len(said) == 2
    assert re.search(f"last is damaged .{says}.*: going on from the checkpoint before it", said[0])
    assert said[1] == f"going on with {stopped} at step 2 of 6"
    assert kept(stopped) == kept(whole)


def test_a_damaged_one_never_displaces_a_good_one(stopped: Path) -> None:
    emptied(stopped / "last")
    run(stopped, RECIPE, stop_at=4)
    assert [training_state.read_progress(stopped / name).step for name in ("last", "before")] == [4, 2]
    assert training_state.checkpoint_damage(stopped / "last") is None


def test_no_whole_checkpoint_is_one_line(stopped: Path) -> None:
    emptied(stopped / "last")
    emptied(stopped / "before")
    with pytest.raises(
        RheoscopeError, match=r"last is damaged .* no whole checkpoint before it; type another --out, or remove"
    ):
        run(stopped, RECIPE)


# A full disk


class Full:
    """`save_tensors` that finds the disk full from its n-th call on, after it has written a part."""

    def __init__(self, after: int) -> None:
        self.left, self.save = after, checkpoint.save_tensors

    def __call__(self, tensors: Any, file: Path) -> None:
        self.left -= 1
        if self.left >= 0:
            return self.save(tensors, file)
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("calls", "step"), [(0, 0), (1, 0), (2, 0), (3, 2), (4, 2), (5, 2), (6, 4)])
def test_a_full_disk(calls: int, step: int, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time something is kept three files of tensors are written: the best model, the last one, the optimiser."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_tensors", Full(calls))
        what = f"the checkpoint of step {step} is kept" if step else "no checkpoint was kept yet"
        with pytest.raises(RheoscopeError, match=rf"cannot write to .* \(No space left on device\); {what}: make room"):
            run(out, RECIPE)
    assert training_state.last_checkpoint_step(out) == step
    assert not [file for file in out.rglob("*") if file.name.startswith(".")]
    if calls:
        load_network(out)
    run(out, RECIPE)
    assert kept(out) == kept(whole)


def test_a_full_disk_for_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RheoscopeError, match=r"cannot write to .* \(No space left on device\); no checkpoint"):
        run(tmp_path / "out", RECIPE)


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RheoscopeError, match=r"cannot write .*file/out: .*file is a file; type "):
        run(tmp_path / "file" / "out", RECIPE)


# Another run in the same place


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rate": 0.5}, r"holds a run with rate=0.01, now rate=0.5; type the same recipe, or another --out"),
        ({"steps": 3}, "stands at step 6 of 6, got --steps 3; type more than 6"),
        ({"seed": 1}, "seed=0, now seed=1"),
        ({"betas": (0.8, 0.9)}, r"betas=\[0.9, 0.95\], now betas=\[0.8, 0.9\]"),
        ({"depth": 3}, "holds a run with depth=2, now depth=3"),
        ({"dropout": 0.0}, "holds a run with dropout=0.2, now dropout=0.0"),
    ],
)
def test_another_recipe_is_refused(changes: dict[str, Any], says: str, whole: Path) -> None:
    before = kept(whole), (whole / "recipe.json").read_bytes()
    with pytest.raises(RheoscopeError, match=says):
        run(whole, RECIPE.with_changes(**changes))
    assert (kept(whole), (whole / "recipe.json").read_bytes()) == before


def test_a_recipe_may_change_before_anything_is_kept(tmp_path: Path) -> None:
    run(tmp_path, RECIPE, stop_at=1)
    run(tmp_path, RECIPE.with_changes(rate=0.005))
    assert json.loads((tmp_path / "recipe.json").read_text())["rate"] == 0.005


def test_another_vocabulary_is_refused(stopped: Path) -> None:
    task = prose()
    object.__setattr__(task.corpus, "vocabulary", 12)
    with pytest.raises(RheoscopeError, match="was trained with 11 tokens, the data has 12; type the data of that run"):
        run(stopped, RECIPE, task)


def test_another_tokenizer_of_the_same_size_is_refused(tmp_path: Path) -> None:
    for name, text in (("one.json", "abcdefghijk"), ("other.json", "bcdefghijkl")):
        character_tokenizer([text], []).save(str(tmp_path / name))
    run(tmp_path / "out", RECIPE, stop_at=3, tokenizer=tmp_path / "one.json")
    with pytest.raises(RheoscopeError, match=r"was trained with other tokens than those of .*other.json"):
        run(tmp_path / "out", RECIPE, tokenizer=tmp_path / "other.json")
    run(tmp_path / "out", RECIPE, tokenizer=tmp_path / "one.json")
    assert load_network(tmp_path / "out")[1].get_vocab_size() == 11


def test_a_checkpoint_of_another_shape(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    (tmp_path / "out" / "recipe.json").unlink()
    with pytest.raises(RheoscopeError, match="holds a model of another shape"):
        run(tmp_path / "out", RECIPE.with_changes(depth=1))


@pytest.mark.parametrize("held", ["", "{", "[]", '{"config": 3}', "{}"])
def test_a_recipe_that_is_none_is_told_in_one_line(held: str, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "out")
    (tmp_path / "out" / "recipe.json").write_text(held)
    with pytest.raises(
        RheoscopeError, match=r"recipe.json is no recipe of a run \(.*\); type another --out, or remove "
    ):
        run(tmp_path / "out", RECIPE)
