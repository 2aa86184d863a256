"""Shell completion in bash, zsh and fish: commands and names, without importing torch."""

import json
import os
import subprocess
import sys

import pytest

from rheoscope.attention.zoo import ZOO
from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.commands import completion
from rheoscope.commands.heal import ARM_NAMES
from rheoscope.flow.cloud import SPACES
from rheoscope.learn.entrants import ENTRANTS
from rheoscope.learn.healing import ARMS, UNTOUCHED
from rheoscope.models.recipes import RECIPES
from rheoscope.theory.experiments import EXPERIMENTS
from tests.commands.cases import run_rheoscope

PROGRAM = """
import io, json, os, sys
from contextlib import redirect_stdout
from rheoscope.commands.app import run_command_line

sys.argv, outputs = ["rheoscope"], []
for variables in json.load(sys.stdin):
    os.environ.update(variables)
    with redirect_stdout(io.StringIO()) as out:
        try:
            run_command_line()
        except SystemExit:
            pass
    outputs.append(out.getvalue())
print(json.dumps([outputs, "torch" in sys.modules]))
"""
SHELLS = ("bash", "zsh", "fish")
LINES = {
    "rheoscope tra": (["train"], ["flow"]),
    "rheoscope analyse tra": (["trajectory", "transport"], ["energy"]),
    "rheoscope --lang ": (["en", "zh"], ["flow"]),
    "rheoscope race run --mechanisms tied,qk": (["tied,qk_norm"], ["metric"]),
    "rheoscope race re": (["report"], ["run"]),
    "rheoscope train ti": (["tiny"], ["digits"]),
    "rheoscope flow --dtype bf": (["bfloat16"], ["float32"]),
    "rheoscope dynamics rank": (["rank_collapse"], ["heat"]),
    "rheoscope keys --comp": (["--compare"], ["--model"]),
}
"""Lines to complete, each with names that are offered and names that are not."""


def completion_request(shell: str, line: str) -> dict[str, str]:
    """The environment in which the completion script of a shell calls `rheoscope` at the end of a line."""
    variables = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    return variables | {"_RHEOSCOPE_COMPLETE": f"complete_{shell}"}


@pytest.fixture(scope="module")
def completions() -> dict[tuple[str, str], str]:
    """What every shell is offered at the end of every line. One process answers all of them and never imports torch."""
    cases = [(shell, line) for shell in SHELLS for line in LINES]
    requests = json.dumps([completion_request(*case) for case in cases])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=requests, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    outputs, has_torch = json.loads(done.stdout)
    assert not has_torch
    return dict(zip(cases, outputs, strict=True))


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("line", LINES)
def test_names_are_completed(shell: str, line: str, completions: dict[tuple[str, str], str]) -> None:
    output, (offered, absent) = completions[shell, line], LINES[line]
    for name in offered:
        assert name in output
    for name in absent:
        assert name not in output


def test_a_text_without_a_command_completes_the_options_of_flow() -> None:
    """In a process of its own, as a shell calls it."""
    environment = os.environ | completion_request("bash", "rheoscope keys --comp")
    command = [sys.executable, "-m", "rheoscope"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["--compare"], "")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_script_is_shown(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: (shell, ""))
    outcome = run_rheoscope("--show-completion")
    assert outcome.status == 0, outcome.err
    assert f"_RHEOSCOPE_COMPLETE=complete_{shell}" in outcome.out


def test_names_read_from_the_source_are_those_of_the_registries() -> None:
    assert completion.mechanism_names() == list(ZOO)
    assert completion.entrant_names() == list(ENTRANTS)
    assert completion.recipe_names() == list(RECIPES)
    assert completion.experiment_names() == list(EXPERIMENTS)
    assert completion.space_names() == list(SPACES)
    assert completion.analysis_names() == list(ANALYSIS_MODULES)
    assert {*ARM_NAMES, UNTOUCHED} == set(ARMS)
    assert "mechanism=metric" in completion.recipe_settings()
