"""Training: exact resume whatever kills a run, the same steps however a batch is cut, and it learns."""

import math
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rheoscope.models.checkpoint import load_network
from rheoscope.models.generate import translate
from rheoscope.models.sentence_pairs import END, START
from rheoscope.models.train import MetricsLog, distributed_process, read_log, train
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks
from tests.models.runs import (
    ENTROPY,
    VOCABULARY,
    apart,
    encoder,
    kept,
    masked,
    prose,
    run,
    small,
    translation,
    translator,
    weights,
)  # fmt: skip
from tests.processes import Fork, run_in_fork

KINDS = {
    "adamw": (small(), prose()),
    "muon": (small(optimiser="muon", schedule="wsd"), prose()),
    "translation": (translator(), translation()),
    "masked": (encoder(), masked()),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> dict[str, Path]:
    """Runs that nothing happened to."""
    out = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, (recipe, task) in KINDS.items():
        run(out[kind], recipe, task)
    return out


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Shapes are checked by shorter runs; in these that would double the time."""
    with without_jaxtyping_checks():
        yield


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("kind", "stop_at"),
    [*(("adamw", at) for at in (1, 2, 3, 8)), ("muon", 2), ("muon", 7), ("translation", 5), ("masked", 5)],
)
def test_a_killed_run_ends_as_if_it_had_not_been(
    kind: str, stop_at: int, whole: dict[str, Path], tmp_path: Path
) -> None:
    """With the state of either optimiser and the order of either kind of data: before, at and after a checkpoint, and at the last."""
    recipe, task = KINDS[kind]
    assert run(tmp_path, recipe, task, stop_at) is None
    torch.manual_seed(stop_at)  # nothing hangs on what else draws random numbers
    run(tmp_path, recipe, task)
    assert kept(tmp_path) == kept(whole[kind])


def test_a_run_killed_again_and_again(whole: dict[str, Path], tmp_path: Path) -> None:
    said: list[str] = []
    for stop_at in (1, 3, 3, 5, 5, 8):
        run(tmp_path, small(), stop_at=stop_at, log=said.append)
    run(tmp_path, small(), log=said.append)
    assert kept(tmp_path) == kept(whole["adamw"])
    assert said == [f"going on with {tmp_path} at step {step} of 9" for step in (2, 2, 4, 4, 8)]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_sigkill_at_any_moment(tmp_path: Path) -> None:
    """A checkpoint a step, so that many of the kills fall into the writing of one."""
    killed, whole, recipe = tmp_path / "killed", tmp_path / "whole", small(steps=14, evaluate_every=1, optimiser="muon")
    run(whole, recipe)
    draw, moment, kills = random.Random(1), 0.05, 0
    for _ in range(8):
        with Fork(lambda: run(killed, recipe)) as child:
            time.sleep(moment * draw.random())
            os.kill(child.pid, signal.SIGKILL)
            status = child.done().returncode
        kills, moment = kills + (status == -signal.SIGKILL), moment * 1.3
    assert kills >= 5
    last = run_in_fork(lambda: run(killed, recipe))
    assert last.returncode == 0, last.stderr
    assert kept(killed) == kept(whole)
    left = {file.name for file in killed.iterdir()}
    assert left == {
        "model.safetensors",
        "config.json",
        "figures.json",
        "recipe.json",
        "log.jsonl",
        "last",
        "before",
    }


@pytest.mark.parametrize(
    ("recipe", "task"), [(small(dropout=0.0, rate=1e-3), prose()), (translator(dropout=0.0, rate=1e-3), translation())]
)
def test_pieces_of_a_batch_are_the_batch(recipe: Any, task: Any, tmp_path: Path) -> None:
    for pieces in (1, 2):
        run(tmp_path / str(pieces), recipe.with_changes(accumulate=pieces), task)
    assert apart(tmp_path / "1", tmp_path / "2") < 1e-6
    if recipe.config.form == "decoder":
        run(tmp_path / "4", recipe.with_changes(accumulate=4), task)
        assert apart(tmp_path / "1", tmp_path / "4") < 1e-6


def as_one_of_two(out: Path) -> None:
    """What each of two processes does, told by torchrun's words which one it is."""
    with distributed_process("cpu") as place:
        assert place.world_size == 2
        run(out / "few", small(dropout=0.0, batch=1, accumulate=1))
        run(out / "prose", small(dropout=0.0))
        run(out / "pairs", translator(dropout=0.0), translation())
        run(out / "pairs killed", translator(dropout=0.0), translation(), stop_at=5)
        run(out / "pairs killed", translator(dropout=0.0), translation())


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    """torchrun itself starts two in tests/learn/test_train_report.py."""
    run(tmp_path / "one prose", small(dropout=0.0))
    run(tmp_path / "one pairs", translator(dropout=0.0), translation())
    run(tmp_path / "one few", small(dropout=0.0, batch=1, accumulate=1))
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    with Fork(partial(as_one_of_two, tmp_path), RANK="0", **place) as first:
        second = run_in_fork(partial(as_one_of_two, tmp_path), RANK="1", **place)
        assert second.returncode == 0, second.stderr
        assert first.done().returncode == 0, first.done().stderr
    assert apart(tmp_path / "one few", tmp_path / "few") < 1e-5  # a process without rows
    for name in ("prose", "pairs"):
        assert apart(tmp_path / f"one {name}", tmp_path / name) < 1e-5
        logs = [[line["train loss"] for line in read_log(tmp_path / which)] for which in (name, f"one {name}")]
        assert logs[0] == pytest.approx(logs[1], abs=1e-5)
    assert kept(tmp_path / "pairs") == kept(tmp_path / "pairs killed")


# It learns


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_it_learns_what_repeats(optimiser: str, tmp_path: Path) -> None:
    """Down to the entropy of the process that wrote the text, far below that of single tokens."""
    recipe = small(steps=100, evaluate_every=50, dropout=0.0, optimiser=optimiser, accumulate=1)
    figures = run(tmp_path, recipe, prose(4000, 400))
    assert 0.85 * ENTROPY < figures["loss"] < 1.3 * ENTROPY < 0.5 * math.log(VOCABULARY)
    assert figures["bits per byte"] == pytest.approx(figures["loss"] / math.log(2) * 399 / 800)
    logged = read_log(tmp_path)
    assert [line["step"] for line in logged] == [50, 100]
    assert figures["loss"] == min(line["loss"] for line in logged)


@pytest.mark.usefixtures("unchecked")
def test_it_learns_to_copy(tmp_path: Path) -> None:
    task = translation(300, longest=3)
    recipe = translator(
        steps=150,
        evaluate_every=150,
        dropout=0.0,
        width=32,
        batch=16,
        rate=3e-3,
        position="learned",
        label_smoothing=0.0,
    )
    assert run(tmp_path, recipe, task)["perplexity"] < 1.4
    model, _ = load_network(tmp_path)
    made = translate(model, torch.tensor([[7, 5, END]]), START, END, max_tokens=6, beam=4)  # type: ignore[arg-type]
    assert made[0].tolist()[:2] == [7, 5]


@pytest.mark.usefixtures("unchecked")
def test_the_best_model_is_kept_not_the_last(tmp_path: Path) -> None:
    """A text so short that it is learned by heart: held-out loss rises again."""
    recipe = small(steps=60, evaluate_every=10, dropout=0.0, rate=2e-2, schedule="wsd")
    figures = run(tmp_path, recipe, prose(40, 100))
    losses = {line["step"]: line["loss"] for line in read_log(tmp_path)}
    assert figures["step"] == min(losses, key=losses.__getitem__) < 60
    assert figures["loss"] == losses[figures["step"]]
    best, last = load_network(tmp_path)[0].state_dict(), weights(tmp_path)
    assert any(not torch.equal(best[name], last[name]) for name in last)
    run(tmp_path / "killed", recipe, prose(40, 100), stop_at=45)
    run(tmp_path / "killed", recipe, prose(40, 100))
    assert kept(tmp_path / "killed") == kept(tmp_path)


def test_a_finished_run_does_nothing(tmp_path: Path) -> None:
    figures = run(tmp_path, small())
    before, told = kept(tmp_path), []
    assert train(small(), prose(), tmp_path, device="cpu", on_progress=told.append) == figures
    assert kept(tmp_path) == before
    assert told == []


def test_what_a_run_tells(tmp_path: Path) -> None:
    told: list[dict[str, float]] = []
    train(small(), prose(), tmp_path, device="cpu", on_progress=told.append)
    assert [line["step"] for line in told] == list(range(1, 10))
    assert [line["step"] for line in told if "loss" in line] == [2, 4, 6, 8, 9]
    assert [line for line in told if "loss" in line] == read_log(tmp_path)


# What goes wrong


def test_a_rate_that_is_too_high(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match=r"the loss is (nan|inf) at step \d+, the rate is too high; .*--set rate="):
        run(tmp_path, small(rate=1e3, norm="none", clip=1e9, warmup=0, steps=50))


@pytest.mark.parametrize(
    ("recipe", "task", "says"),
    [
        (small(), prose(train=10), "the training part has 10 tokens, a context of 12 needs 13"),
        (small(), prose(held_out=0), "the held-out part has 0 tokens"),
        (translator(), prose(), "text is for form=decoder, this recipe has form=encoder-decoder"),
        (small(form="encoder"), prose(), "text is for form=decoder"),
        (small(), masked(), "masked text is for form=encoder, this recipe has form=decoder"),
        (encoder(), masked(held_out=0), "the held-out part has 0 tokens"),
        (small(), translation(), "sentence pairs are for form=encoder-decoder"),
        (translator(), translation(longest=60), "the longest sentence takes .* tokens, this recipe reads 16; type --set context="),
    ],
)  # fmt: skip
def test_data_that_does_not_serve_is_told_before_the_first_step(
    recipe: Any, task: Any, says: str, tmp_path: Path
) -> None:
    with pytest.raises(RheoscopeError, match=says):
        run(tmp_path / "out", recipe, task)
    assert not (tmp_path / "out").exists()


def test_no_such_device() -> None:
    with (
        pytest.raises(RheoscopeError, match="there is no device 'moon' here; type --device cpu"),
        distributed_process("moon"),
    ):
        pass


def test_a_log_that_was_cut_short(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 2, "loss": 1.5}\n{"step": 4, "loss": 1.25}\n{"step": 6, "lo')
    log = MetricsLog(tmp_path, 2)
    log.write({"step": 4, "loss": 1.0})
    assert read_log(tmp_path) == [{"step": 2, "loss": 1.5}, {"step": 4, "loss": 1.0}]
