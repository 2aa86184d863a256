"""`rheoscope train`: in the same process where that is faster, as a person types it where it matters."""

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rheoscope as rs
from rheoscope.commands.app import main
from rheoscope.learn.train_report import recipe_table, run_training
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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text(TEXT)
    return tmp_path


def train(out: str = "run", data: str = "a.txt", settings: Any = SMALL, steps: int = 4, **more: Any) -> None:
    run_training("tiny", [Path(data)], Path(out), (), settings, steps, "cpu", **more)


def test_a_run_its_end_and_its_repetition(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train()
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.startswith("wrote run (held out: loss ")
    assert said.out.endswith(', at step 4); type rheoscope generate --model run "…"\n')
    train()
    assert capsys.readouterr().out.startswith("run is finished at step 4 (held out: loss ")


def test_an_encoder_is_trained_opened_and_asked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command to the analyses; hidden tokens become likelier than by their frequency."""
    settings = [*SMALL, "batch=16", "rate=0.02", "evaluate_every=150", "held_out=0.3", "warmup=10"]
    with without_jaxtyping_checks():  # shapes are checked by shorter runs
        run_training("encoder", [Path("a.txt")], Path("run"), (), settings, 150, "cpu")
    assert capsys.readouterr().out.endswith(', at step 150); type rheoscope "…" --model run\n')
    shares = [TEXT.count(letter) / len(TEXT) for letter in set(TEXT)]
    assert read_log(Path("run"))[-1]["loss"] < -sum(share * math.log(share) for share in shares) - 0.3
    model = rs.load("run")
    trace = model.trace("the <|mask|>at sat", logits=True)
    assert trace.tokens[:6] == ["<|endoftext|>", "t", "h", "e", " ", "<|mask|>"]
    assert model.token_strings([int(trace.logits[5].argmax())])[0] in ("c", "s", "m")
    assert float(trace.weights(0, 0).triu(1).sum()) > 0  # it reads what comes after
    for ask in (rs.trajectory, rs.transport, rs.readout, rs.agreement, rs.heat):
        assert ask(trace).data_vars


def test_it_goes_on(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rheoscope.models.train import Run

    step = Run.step

    def interrupted(self: Any, objective: Any, at: int) -> Any:
        if at == 3:
            raise KeyboardInterrupt
        return step(self, objective, at)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", interrupted)
        with pytest.raises(SystemExit) as ended:
            train()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "stopped, the checkpoint of step 2 is kept; type the same command to go on\n"
    train()
    said = capsys.readouterr()
    assert said.err == "resuming run at step 2 of 4\n"
    assert [line["step"] for line in read_log(here / "run")] == [2, 4]


def test_a_bar_and_figures_for_a_person(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    train()
    said = capsys.readouterr().err
    assert "step 2: held out loss" in said
    assert "tokens/s" in said
    assert "step 4 of 4" in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"settings": [*SMALL, "rate=0.5"]}, "holds a run with rate=0.003, got rate=0.5"),
        ({"settings": [*SMALL, "colour=red"]}, "a recipe has no setting 'colour'"),
        ({"data": "nowhere.txt"}, "was prepared with data a.txt"),
        ({"out": "a.txt"}, "a.txt is a file, expected a directory"),
        ({"out": "new", "data": "nowhere.txt"}, "there is no file nowhere.txt"),
        ({"out": "new", "settings": [*SMALL, "context=5000"]}, "the training part has .* tokens, but a context of 5,000"),
        ({"out": "new", "settings": [*SMALL, "rate=1e3", "clip=1e9", "norm=none", "warmup=0"], "steps": 40}, "the loss is (nan|inf)"),
    ],
)  # fmt: skip
def test_mistakes(changes: dict[str, Any], says: str, here: Path) -> None:
    train()
    with pytest.raises(RheoscopeError, match=says) as refusal:
        train(**changes)
    assert "\n" not in str(refusal.value)


def test_recipes_in_a_table() -> None:
    assert len(recipe_table().rows) >= 7


def test_tensorboard(here: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tensorboard=True)
    events = EventAccumulator(str(here / "run" / "tensorboard"))
    events.Reload()
    for name in ("loss", "train loss", "rate", "bits per byte"):
        kept = [(one.step, one.value) for one in events.Scalars(name)]
        assert kept == [(line["step"], pytest.approx(line[name])) for line in read_log(here / "run")]


def test_tensorboard_is_an_extra(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RheoscopeError, match=r"--tensorboard needs a package; type pip install 'rheoscope\[train\]'"):
        train(tensorboard=True)


def words(out: str, *more: str) -> list[str]:
    return ["tiny", "--data", "a.txt", "--out", out, "--device", "cpu", "--set", *SMALL, *more]


@pytest.mark.slow
def test_ctrl_c_as_a_person_types_it(here: Path) -> None:
    with Fork(main, "train", *words("run"), "--steps", "20000") as running:
        patience = time.monotonic() + 60
        while not (here / "run" / "last").is_dir() and time.monotonic() < patience:
            time.sleep(0.05)
        os.kill(running.pid, signal.SIGINT)
        done = running.done(60)
    assert done.returncode == 130, done.stderr
    *pace, last = done.stderr.splitlines()  # the estimate, where ten steps were made
    assert last.startswith("stopped, the checkpoint of step ")
    assert len(pace) <= 1


def by_torchrun() -> None:
    """What `torchrun --standalone --nproc-per-node 2` does, but that both processes are forks of one that has imported torch."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    place = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    elastic_launch(LaunchConfig(1, 1, 2, run_id="a", start_method="fork", max_restarts=0, **place), main)()


@pytest.mark.slow
def test_torchrun(here: Path) -> None:
    """Two processes: one prepares, one speaks; the same command goes on, and ends as one process does."""
    train("one")
    done = run_in_fork(by_torchrun, "train", *words("many"), "--steps", "4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote many") == 1
    logs = [[line["loss"] for line in read_log(here / out)] for out in ("many", "one")]
    assert logs[0] == pytest.approx(logs[1], abs=1e-4)
