"""Every command that runs a model, in bfloat16 and float16 on the CPU."""

import json
from itertools import cycle
from pathlib import Path

import pytest

from rheoscope.models.checkpoint import save
from tests.commands.cases import run_rheoscope
from tests.report.cases import small

TEXT = "The keys to the cabinet are on the table in the hall"
COMMANDS = [
    ("flow", TEXT, "--fast", "--html", "r.html"),
    ("operators", "--text", TEXT, "--json", "o.json"),
    ("covers", TEXT, "--fast"),
    ("surgery", TEXT, "--heads", "1.0", "--M", "symmetric", "--F", "rank 2"),
    ("surgery", TEXT, "--heads", "1.0", "--M", "rank 2", "--per-head"),
    ("reverse", TEXT),
    ("analyse", "fixed_point", TEXT, "--layers", "1", "--iterations", "3"),
]


CASES = [*zip(COMMANDS, cycle(["bfloat16", "float16"])), (COMMANDS[0], "float16")]
"""The dtypes take turns, because tests/laws/every_dtype.py runs every analysis in both."""


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a tokenizer."""
    path = tmp_path_factory.mktemp("models") / "small"
    save(small().network, path, small().tokenizer)
    return path


@pytest.mark.parametrize(("arguments", "dtype"), CASES, ids=lambda value: value if isinstance(value, str) else value[0])
def test_every_command_runs(arguments: tuple[str, ...], dtype: str, model_directory: Path, tmp_path: Path) -> None:
    outcome = run_rheoscope(*arguments, "--model", str(model_directory), "--dtype", dtype, cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert f"exact up to the rounding of {dtype}" in outcome.words
    assert "internal error" not in outcome.out
    if "--html" in arguments:
        assert f"rounding of {dtype}" in (tmp_path / "r.html").read_text()
    if "--json" in arguments:
        assert json.loads((tmp_path / "o.json").read_text())["operators"]["attrs"]["dtype"] == dtype
