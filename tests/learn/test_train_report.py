"""`rheoscope train`: mostly in this process, and in a forked one for signals and torchrun."""

import math
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rheoscope as rs
from rheoscope.commands.app import main
from rheoscope.learn.train_report import recipe_table, run_training
from rheoscope.models.recipes import RECIPES
from rheoscope.models.train import read_log
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks
from tests.processes import Fork, run_in_fork

SMALL = [
    "width=16",
    "depth=1",
    "heads=2",
    "batch=4",
    "context=16",
    "evaluate_every=2",
    "vocabulary=characters",
    "held_out=0.1",
]
TEXT = "the cat sat on the mat. " * 100


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path


def train(out: str = "run", data: str = "a.txt", settings: Any = SMALL, steps: int = 4, **options: Any) -> None:
    run_training("tiny", [Path(data)], Path(out), (), settings, steps, "cpu", **options)


def test_a_finished_run_is_reported_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train()
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out.startswith("wrote run (held out: loss ")
    assert output.out.endswith(', at step 4); type rheoscope generate --model run "…"\n')
    train()
    assert re.fullmatch(
        r"run is finished at step 4 \(held out: loss .*, at step 4\); type .*, or --steps 8 to train longer\n",
        capsys.readouterr().out,
    )


def test_a_trained_encoder_opens_and_can_be_analysed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command to the analyses. Masked tokens become more probable than by their frequency."""
    settings = [*SMALL, "batch=16", "rate=0.02", "evaluate_every=150", "held_out=0.3", "warmup=10"]
    with without_jaxtyping_checks():  # shorter tests check the shapes
        run_training("encoder", [Path("a.txt")], Path("run"), (), settings, 150, "cpu")
    assert capsys.readouterr().out.endswith(', at step 150); type rheoscope "…" --model run\n')
    shares = [TEXT.count(letter) / len(TEXT) for letter in set(TEXT)]
    assert read_log(Path("run"))[-1]["loss"] < -sum(share * math.log(share) for share in shares) - 0.3
    model = rs.load("run")
    trace = model.trace("the <|mask|>at sat", logits=True)
    assert trace.tokens[:6] == ["<|endoftext|>", "t", "h", "e", " ", "<|mask|>"]
    assert model.token_strings([int(trace.logits[5].argmax())])[0] in ("c", "s", "m")
    assert float(trace.weights(0, 0).triu(1).sum()) > 0  # it attends to later tokens
    for ask in (rs.trajectory, rs.transport, rs.readout, rs.agreement, rs.heat):
        assert ask(trace).data_vars


def test_an_interrupted_run_continues(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rheoscope.models.train import Run

    step = Run.step

    def interrupted_step(self: Any, objective: Any, current_step: int) -> Any:
        if current_step == 3:
            raise KeyboardInterrupt
        return step(self, objective, current_step)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", interrupted_step)
        with pytest.raises(SystemExit) as exit_info:
            train()
    assert exit_info.value.code == 130
    assert re.fullmatch(r"stopped: .*step 2.*; run the same command to continue\n", capsys.readouterr().err)
    train()
    output = capsys.readouterr()
    assert "step 2 of 4" in output.err
    assert [line["step"] for line in read_log(folder / "run")] == [2, 4]


def test_a_terminal_shows_a_bar_and_held_out_figures(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    train()
    output = capsys.readouterr().err
    assert "step 2: held-out loss" in output
    assert "tokens/s" in output
    assert "step 4 of 4" in output


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"settings": [*SMALL, "rate=0.5"]}, "holds a run with rate=0.003, .* rate=0.5"),
        ({"settings": [*SMALL, "colour=red"]}, "a recipe has no .*'colour'"),
        ({"data": "nowhere.txt"}, "was .* with data a.txt"),
        ({"out": "a.txt"}, "a.txt is a file, expected a directory"),
        ({"out": "new", "data": "nowhere.txt"}, "there is no file nowhere.txt"),
        ({"out": "new", "settings": [*SMALL, "context=5000"]}, "the training part has .* tokens, .*a context of 5,000"),
        ({"out": "new", "settings": [*SMALL, "rate=1e3", "clip=1e9", "norm=none", "warmup=0"], "steps": 40}, "the loss is (nan|inf)"),
    ],
)  # fmt: skip
def test_mistakes_are_errors_of_one_line(changes: dict[str, Any], pattern: str, folder: Path) -> None:
    train()
    with pytest.raises(RheoscopeError, match=pattern) as error:
        train(**changes)
    assert "\n" not in str(error.value)


def test_the_table_lists_every_recipe() -> None:
    assert [row[0].text for row in recipe_table().rows] == list(RECIPES)


def test_tensorboard_gets_the_figures_of_the_log(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tensorboard=True)
    events = EventAccumulator(str(folder / "run" / "tensorboard"))
    events.Reload()
    for name in ("loss", "train loss", "rate", "bits per byte"):
        scalars = [(event.step, event.value) for event in events.Scalars(name)]
        assert scalars == [(line["step"], pytest.approx(line[name])) for line in read_log(folder / "run")]


def test_a_missing_tensorboard_is_an_error_with_the_install_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RheoscopeError, match="needs the package tensorboard") as error:
        train(tensorboard=True)
    assert error.value.on("shell").endswith("; type pip install 'rheoscope[train]'")


def arguments(out: str, *options: str) -> list[str]:
    return ["tiny", "--data", "a.txt", "--out", out, "--device", "cpu", "--set", *SMALL, *options]


@pytest.mark.slow
def test_ctrl_c_stops_with_a_checkpoint(folder: Path) -> None:
    with Fork(main, "train", *arguments("run"), "--steps", "20000") as process:
        deadline = time.monotonic() + 60
        while not (folder / "run" / "last").is_dir() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        outcome = process.done(60)
    assert outcome.returncode == 130, outcome.stderr
    *estimates, last = outcome.stderr.splitlines()  # an estimate of the duration, if ten steps were done
    assert last.startswith("stopped: ")
    assert len(estimates) <= 1


def run_with_torchrun() -> None:
    """Like `torchrun --standalone --nproc-per-node 2`, but with forks of a process that has already imported torch."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    rendezvous = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    elastic_launch(LaunchConfig(1, 1, 2, run_id="a", start_method="fork", max_restarts=0, **rendezvous), main)()


@pytest.mark.slow
def test_two_processes_train_like_one(folder: Path) -> None:
    """One process prepares the data and one prints. The losses equal those of a single process."""
    train("one")
    outcome = run_in_fork(run_with_torchrun, "train", *arguments("many"), "--steps", "4")
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("wrote many") == 1
    logs = [[line["loss"] for line in read_log(folder / out)] for out in ("many", "one")]
    assert logs[0] == pytest.approx(logs[1], abs=1e-4)
