"""CUDA graphs of training steps: a replay equals the function, random numbers are fresh, and training still learns."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import dropout

import rheoscope as rs
from rheoscope.attention.zoo import ZOO
from rheoscope.models.cuda_graph_steps import Recorder
from rheoscope.models.optimiser import make_optimisers
from rheoscope.models.recipes import Recipe
from rheoscope.models.task import Objective, Task, seed_generators
from rheoscope.models.train import Process, Run, read_log, train
from rheoscope.models.transformer import build
from tests.attention.cases import without_jaxtyping_checks
from tests.models.outside import POSITIONS
from tests.models.runs import Killed, encoder, masked, prose, small, translation, translator
from tests.waiting import WaitRecorder

PENALTIES = {"asymmetry": 1.0, "residual": 0.1}
KINDS: dict[str, tuple[Recipe, Task]] = {
    "adamw": (small(dropout=0.0), prose()),
    "dropped": (small(attention_dropout=0.1, accumulate=1), prose()),
    "penalised": (small(dropout=0.0, penalty=PENALTIES), prose()),
    "translation": (translator(dropout=0.0), translation()),
    "masked": (encoder(dropout=0.0), masked()),
}
COMPILERS = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated. Methods on autograd functions"),
]


def on_gpu(test: Any) -> Any:
    for mark in [pytest.mark.gpu, *COMPILERS]:
        test = mark(test)
    return test


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Disable shape checks, which break the graphs of `torch.compile`."""
    with without_jaxtyping_checks():
        yield


class WaitingRecorder(Recorder):
    """Run each step and record the operations that waited for the device."""

    def __call__(self, function: Any, *inputs: torch.Tensor) -> torch.Tensor:
        with WaitRecorder() as self.waits:
            return super().__call__(function, *inputs)


@pytest.mark.parametrize("kind", [*KINDS, *POSITIONS, *ZOO])
def test_a_step_of_training_never_waits_for_the_device(kind: str) -> None:
    """A step that waits could not be recorded on a GPU."""
    recipe, task = KINDS.get(kind, KINDS["adamw"])
    if kind in ZOO:
        form = "encoder" if kind == "sinkhorn" else "decoder"  # it supports no mask
        recipe, task = recipe.with_changes(mechanism=kind, form=form), task if form == "decoder" else masked()
    elif kind in POSITIONS:
        recipe = recipe.with_changes(position=kind)
    recipe = replace(recipe, config=recipe.config.with_changes(vocabulary=task.vocabulary))
    model, recorder = build(recipe.config), WaitingRecorder()
    silent: Any = lambda *_: None  # noqa: E731
    optimisers, process = make_optimisers(model, recipe), Process(torch.device("cpu"))
    run = Run(recipe, task, Path(), None, model, optimisers, process, silent, silent, silent, recorder)
    run.step(Objective(model, task, recipe.label_smoothing, recipe.penalty).train(), 0)
    assert recorder.waits.operations == []


@on_gpu
def test_a_replay_equals_the_function() -> None:
    total, run = torch.zeros(3, device="cuda"), Recorder(enabled=True)
    for step in range(6):
        x = torch.full((3,), float(step), device="cuda")
        assert torch.equal(run(lambda x: total.add_(x).clone(), x), torch.full_like(x, step * (step + 1) / 2))
    assert len(run.recordings) == 1
    assert run(lambda x: 2 * x, torch.ones(5, device="cuda")).shape == (5,)  # a first call with another shape


@on_gpu
def test_every_replay_draws_fresh_random_numbers() -> None:
    run, ones = Recorder(enabled=True), torch.ones(1000, device="cuda")
    samples = []
    for seed in (0, 1, 2, 3, 4, 3):
        seed_generators(seed, ones.device)
        samples.append(run(lambda x: dropout(x, 0.5), ones))
    assert run.recordings
    assert torch.equal(samples[3], samples[5])
    assert not any(torch.equal(a, b) for i, a in enumerate(samples[:5]) for b in samples[:i])


@pytest.mark.parametrize(
    ("free_bytes", "reserved_bytes", "fits"), [(8, 3, True), (7, 3, False), (3, 8, True), (0, 0, False)]
)
def test_a_recording_needs_twice_the_memory_of_a_step(
    free_bytes: int, reserved_bytes: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes 5 in addition to the 1 that is allocated, so 10 must be free or reserved and unallocated."""
    memory = {
        "memory_allocated": 1,
        "max_memory_allocated": 6,
        "memory_reserved": reserved_bytes,
        "mem_get_info": (free_bytes, 20),
    }
    for name, number in memory.items():
        monkeypatch.setattr(torch.cuda, name, lambda number=number: number)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(
        "rheoscope.models.cuda_graph_steps._on_recording_stream", lambda function, *inputs: function(*inputs)
    )
    recordings: list[str] = []
    monkeypatch.setattr(
        Recorder, "_record", lambda self, function, *inputs: recordings.append("") or FakeRecording(function)
    )
    run = Recorder(enabled=True)
    assert all(float(run(lambda x: x + 1, torch.ones(()))) == 2 for _ in range(4))
    assert bool(recordings) == fits


class FakeRecording:
    """A recording that calls the function, for machines without a GPU."""

    def __init__(self, function: Any) -> None:
        self.replay = function


@on_gpu
@pytest.mark.parametrize("kind", ["adamw", "dropped", "penalised", "masked", "muon"])
def test_recorded_training_is_training(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchecked: None
) -> None:
    """Compare compiled and recorded training with plain training. Muon is compiled but not recorded. An observer may keep Views.

    Translation is left out, because its batches seldom have the same shapes three times in so few steps.
    """
    torch._dynamo.reset()  # other tests of this process count towards its limit of recompilations
    recipe, task = KINDS[kind] if kind in KINDS else (small(dropout=0.0, optimiser="muon"), prose())
    recipe = recipe.with_changes(width=64, hidden=64, rate=1e-3, steps=9)
    recordings, observed_models, original_record = [], [], Recorder._record
    monkeypatch.setattr(
        Recorder, "_record", lambda self, *arguments: recordings.append(1) or original_record(self, *arguments)
    )
    for compiled in (False, True):
        observe = (lambda step, model: observed_models.append(rs.load(model))) if compiled and kind == "adamw" else None
        train(recipe, task, tmp_path / str(compiled), device="cuda", compiled=compiled, observe=observe)
        assert bool(recordings) == (compiled and kind != "muon")
    plain, fast = (read_log(tmp_path / str(compiled)) for compiled in (False, True))
    dropout_tolerance = 0.2 if kind == "dropped" else 0.0  # a compiled model draws other random numbers
    for plain_line, fast_line in zip(plain, fast, strict=True):
        assert fast_line["loss"] == pytest.approx(plain_line["loss"], abs=2e-2 + dropout_tolerance)
        assert fast_line["rate"] == plain_line["rate"]
    assert fast[-1]["loss"] < fast[0]["loss"]


@on_gpu
def test_a_recorded_run_resumes(tmp_path: Path, unchecked: None) -> None:
    recipe = small(dropout=0.0, width=64, hidden=64, rate=1e-3, steps=12)

    def stop_after(metrics: dict[str, float]) -> None:
        if metrics["step"] == 7:
            raise Killed

    train(recipe, prose(), tmp_path / "whole", device="cuda")
    with pytest.raises(Killed):
        train(recipe, prose(), tmp_path / "killed", device="cuda", on_progress=stop_after)
    train(recipe, prose(), tmp_path / "killed", device="cuda")
    for expected, line in zip(read_log(tmp_path / "whole"), read_log(tmp_path / "killed"), strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], abs=1e-2)
