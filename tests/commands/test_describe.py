"""`rheoscope describe --plan`, and the option `--stream` of commands that load a model."""

import json
from pathlib import Path

import pytest

from rheoscope.pretrained import loading_plan, streaming
from rheoscope.report import progress_bars
from rheoscope.running.read_speed import read_speed
from tests.commands.conftest import Run
from tests.running.streamed_cases import checkpoint, resident

OPEN_MODEL = progress_bars.open_model
"""The function before the fixture `run` replaces it."""


@pytest.fixture
def run_as_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command that loads its model as users load it."""
    monkeypatch.setattr(progress_bars, "open_model", OPEN_MODEL)
    return run


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading_plan, "measure_read_speed", lambda source: (1e9, source))


def test_a_plan_is_printed_and_written(run: Run) -> None:
    outcome = run("describe", "--plan", str(checkpoint("llama")), "--tokens", "9", "--json", "plan.json")
    assert outcome.status == 0
    for part in (
        "layer",
        "bytes of each",
        "In memory it needs up to",
        "Streamed (--stream)",
        "A trace of 9 tokens costs",
    ):
        assert part in outcome.words
    numbers = json.loads(Path("plan.json").read_text())
    assert numbers["total_bytes"] == sum(x.nbytes for x in resident("llama").network.parameters())
    assert numbers["read_seconds"] == numbers["file_bytes"] / 1e9


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("describe", "--plan"), 2, "type rheoscope describe --plan gpt2"),
        (("describe", "--plan", "no/such/model"), 1, "there is no directory no/such/model"),
        (("operators", "--stream"), 1, "cannot be streamed; choose a pretrained model; type --no-stream"),
    ],
)
def test_bad_input_gives_one_line(run_as_installed: Run, arguments: tuple[str, ...], status: int, message: str) -> None:
    outcome = run_as_installed(*arguments)
    assert (outcome.status, len(outcome.err.splitlines())) == (status, 1)
    assert message in outcome.err


def test_a_model_that_does_not_fit_is_streamed_with_one_line(
    run_as_installed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "fits", lambda n_bytes, device: False)
    outcome = run_as_installed("operators", "--model", str(checkpoint("llama")))
    assert outcome.status == 0
    assert "so its weights are read block by block" in outcome.err
    assert "Warning" not in outcome.err
    assert run_as_installed("operators", "--model", str(checkpoint("llama")), "--no-stream").err == ""


def test_reading_has_a_speed(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(5000))
    assert read_speed(tmp_path / "x") > 0
