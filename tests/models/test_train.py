"""Training: exact resume after any kill, the same steps however a batch is split, and models that learn."""

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
from rheoscope.models.train import MetricsLog, distributed_process, read_log, train
from rheoscope.models.vocabulary import END, START
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks
from tests.models.runs import (
    ENTROPY,
    VOCABULARY,
    encoder,
    masked,
    prose,
    run,
    run_files,
    small,
    translation,
    translator,
    weight_gap,
    weights,
)  # fmt: skip
from tests.processes import Fork, run_in_fork

KINDS = {
    "adamw": (small(steps=6), prose()),
    "muon": (small(steps=6, optimiser="muon", schedule="wsd"), prose()),
    "translation": (translator(steps=6), translation()),
    "masked": (encoder(steps=6), masked()),
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: Any) -> dict[str, Path]:
    """The directory of an uninterrupted run of each kind."""
    out = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, (recipe, task) in KINDS.items():
        run(out[kind], recipe, task)
    return out


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Disable shape checks, which would double the time. Shorter runs have them."""
    with without_jaxtyping_checks():
        yield


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("kind", "stop_at"),
    [*(("adamw", step) for step in (1, 2, 3, 5)), ("muon", 2), ("muon", 5), ("translation", 3), ("masked", 3)],
)
def test_a_killed_run_resumes_exactly(kind: str, stop_at: int, uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    """For both optimisers and all kinds of data: before, at and after a checkpoint, and just before the end."""
    recipe, task = KINDS[kind]
    assert run(tmp_path, recipe, task, stop_at) is None
    torch.manual_seed(stop_at)  # other random numbers do not matter
    run(tmp_path, recipe, task)
    assert run_files(tmp_path) == run_files(uninterrupted[kind])


def test_a_run_killed_several_times_resumes_exactly(uninterrupted: dict[str, Path], tmp_path: Path) -> None:
    messages, (recipe, task) = list[str](), KINDS["adamw"]
    for stop_at in (1, 3, 3, 5, 5):
        run(tmp_path, recipe, task, stop_at, log=messages.append)
    run(tmp_path, recipe, task, log=messages.append)
    assert run_files(tmp_path) == run_files(uninterrupted["adamw"])
    assert messages == [f"resuming {tmp_path} at step {step} of 6" for step in (2, 2, 4, 4)]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_sigkill_at_any_moment_leaves_a_run_that_resumes_exactly(tmp_path: Path) -> None:
    """With a checkpoint at every step, so that many kills interrupt a write."""
    killed, expected = tmp_path / "killed", tmp_path / "expected"
    recipe = small(steps=14, evaluate_every=1, optimiser="muon")
    run(expected, recipe)
    generator, moment, kills = random.Random(1), 0.05, 0
    for _ in range(8):
        with Fork(lambda: run(killed, recipe)) as child:
            time.sleep(moment * generator.random())
            os.kill(child.pid, signal.SIGKILL)
            status = child.done().returncode
        kills, moment = kills + (status == -signal.SIGKILL), moment * 1.3
    assert kills >= 5
    last = run_in_fork(lambda: run(killed, recipe))
    assert last.returncode == 0, last.stderr
    assert run_files(killed) == run_files(expected)
    files = {file.name for file in killed.iterdir()}
    assert files == {
        "model.safetensors",
        "config.json",
        "figures.json",
        "recipe.json",
        "log.jsonl",
        "last",
        "before",
    }


@pytest.mark.parametrize(
    ("recipe", "task"),
    [(small(dropout=0.0, rate=1e-3, steps=5), prose()), (translator(dropout=0.0, rate=1e-3, steps=5), translation())],
)
def test_accumulation_does_not_change_the_weights(recipe: Any, task: Any, tmp_path: Path) -> None:
    for parts in (1, 2):
        run(tmp_path / str(parts), recipe.with_changes(accumulate=parts), task)
    assert weight_gap(tmp_path / "1", tmp_path / "2") < 1e-6
    if recipe.config.form == "decoder":
        run(tmp_path / "4", recipe.with_changes(accumulate=4), task)
        assert weight_gap(tmp_path / "1", tmp_path / "4") < 1e-6


FEW, PROSE = small(dropout=0.0, batch=1, accumulate=1, steps=3), small(dropout=0.0, steps=3)
TRANSLATED = translator(dropout=0.0, steps=4)


def train_in_two_processes(out: Path) -> None:
    """The work of each of two processes, whose rank comes from the environment variables of torchrun."""
    with distributed_process("cpu") as process:
        assert process.world_size == 2
        run(out / "few", FEW)
        run(out / "prose", PROSE)
        run(out / "pairs", TRANSLATED, translation())
        run(out / "pairs killed", TRANSLATED, translation(), stop_at=3)
        run(out / "pairs killed", TRANSLATED, translation())


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    """tests/learn/test_train_report.py starts two processes with torchrun itself."""
    run(tmp_path / "one prose", PROSE)
    run(tmp_path / "one pairs", TRANSLATED, translation())
    run(tmp_path / "one few", FEW)
    with socket.create_server(("127.0.0.1", 0)) as free:
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    with Fork(partial(train_in_two_processes, tmp_path), RANK="0", **environment) as first:
        second = run_in_fork(partial(train_in_two_processes, tmp_path), RANK="1", **environment)
        assert second.returncode == 0, second.stderr
        assert first.done().returncode == 0, first.done().stderr
    assert weight_gap(tmp_path / "one few", tmp_path / "few") < 1e-5  # a process without rows
    for name in ("prose", "pairs"):
        assert weight_gap(tmp_path / f"one {name}", tmp_path / name) < 1e-5
        logs = [[line["train loss"] for line in read_log(tmp_path / run_name)] for run_name in (name, f"one {name}")]
        assert logs[0] == pytest.approx(logs[1], abs=1e-5)
    assert run_files(tmp_path / "pairs") == run_files(tmp_path / "pairs killed")


# Learning


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("optimiser", "rate"), [("adamw", 4e-2), ("muon", 8e-2)])
def test_training_reaches_the_entropy_of_a_periodic_text(optimiser: str, rate: float, tmp_path: Path) -> None:
    """The loss reaches the entropy of the process that wrote the text, far below that of single tokens."""
    recipe = small(steps=40, evaluate_every=20, dropout=0.0, optimiser=optimiser, accumulate=1, rate=rate)
    metrics = run(tmp_path, recipe, prose(4000, 400))
    assert 0.85 * ENTROPY < metrics["loss"] < 1.3 * ENTROPY < 0.5 * math.log(VOCABULARY)
    assert metrics["bits per byte"] == pytest.approx(metrics["loss"] / math.log(2) * 399 / 800)
    logged = read_log(tmp_path)
    assert [line["step"] for line in logged] == [20, 40]
    assert metrics["loss"] == min(line["loss"] for line in logged)


@pytest.mark.usefixtures("unchecked")
def test_a_translator_learns_to_copy(tmp_path: Path) -> None:
    task = translation(300, longest=3)
    recipe = translator(
        steps=150,
        evaluate_every=150,
        dropout=0.0,
        width=32,
        depth=1,
        batch=16,
        rate=3e-3,
        position="learned",
        label_smoothing=0.0,
    )
    assert run(tmp_path, recipe, task)["perplexity"] < 1.4
    model, _ = load_network(tmp_path)
    translation_ids = translate(model, torch.tensor([[7, 5, END]]), START, END, max_tokens=6, beam=4)  # type: ignore[arg-type]
    assert translation_ids[0].tolist()[:2] == [7, 5]


@pytest.mark.usefixtures("unchecked")
def test_the_best_model_is_stored_instead_of_the_last(tmp_path: Path) -> None:
    """The text is so short that the model overfits, and the held-out loss rises again."""
    recipe = small(steps=30, evaluate_every=5, dropout=0.0, rate=4e-2, schedule="wsd")
    metrics = run(tmp_path, recipe, prose(40, 100))
    losses = {line["step"]: line["loss"] for line in read_log(tmp_path)}
    assert metrics["step"] == min(losses, key=losses.__getitem__) < 30
    assert metrics["loss"] == losses[metrics["step"]]
    best, last = load_network(tmp_path)[0].state_dict(), weights(tmp_path)
    assert any(not torch.equal(best[name], last[name]) for name in last)
    run(tmp_path / "killed", recipe, prose(40, 100), stop_at=22)
    run(tmp_path / "killed", recipe, prose(40, 100))
    assert run_files(tmp_path / "killed") == run_files(tmp_path)


def test_a_finished_run_is_not_trained_further(tmp_path: Path) -> None:
    metrics = run(tmp_path, small())
    before, reports = run_files(tmp_path), []
    assert train(small(), prose(), tmp_path, device="cpu", on_progress=reports.append) == metrics
    assert run_files(tmp_path) == before
    assert reports == []


def test_every_step_is_reported_and_evaluations_are_logged(tmp_path: Path) -> None:
    reports: list[dict[str, float]] = []
    train(small(), prose(), tmp_path, device="cpu", on_progress=reports.append)
    assert [line["step"] for line in reports] == list(range(1, 10))
    assert [line["step"] for line in reports if "loss" in line] == [2, 4, 6, 8, 9]
    assert [line for line in reports if "loss" in line] == read_log(tmp_path)


# Errors


def test_an_infinite_loss_suggests_a_lower_rate(tmp_path: Path) -> None:
    with pytest.raises(
        RheoscopeError, match=r"the loss is (nan|inf) at step \d+, so the learning rate is too high; .*rate="
    ):
        run(tmp_path, small(rate=1e3, norm="none", clip=1e9, warmup=0, steps=50))


@pytest.mark.parametrize(
    ("recipe", "task", "pattern"),
    [
        (small(), prose(train=10), "the training part has 10 tokens, but a context of 12 needs at least 13"),
        (small(), prose(held_out=0), "the held-out part has 0 tokens"),
        (translator(), prose(), "text needs a model with form=decoder, got form=encoder-decoder"),
        (small(form="encoder"), prose(), "text needs a model with form=decoder"),
        (small(), masked(), "masked text needs a model with form=encoder, got form=decoder"),
        (encoder(), masked(held_out=0), "the held-out part has 0 tokens"),
        (small(), translation(), "a corpus of sentence pairs needs a model with form=encoder-decoder"),
        (translator(), translation(longest=60), "the longest sentence has .* tokens, more than the 16 .*; type context="),
    ],
)  # fmt: skip
def test_unsuitable_data_is_refused_before_the_first_step(recipe: Any, task: Any, pattern: str, tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match=pattern):
        run(tmp_path / "out", recipe, task)
    assert not (tmp_path / "out").exists()


def test_an_unknown_device_is_refused() -> None:
    with (
        pytest.raises(RheoscopeError, match="this machine has no device 'moon'; type device='cpu'"),
        distributed_process("moon"),
    ):
        pass


def test_a_truncated_line_of_the_log_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 2, "loss": 1.5}\n{"step": 4, "loss": 1.25}\n{"step": 6, "lo')
    log = MetricsLog(tmp_path, 2)
    log.write({"step": 4, "loss": 1.0})
    assert read_log(tmp_path) == [{"step": 2, "loss": 1.5}, {"step": 4, "loss": 1.0}]
