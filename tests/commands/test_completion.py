"""Shell completion in bash, zsh and fish: commands and names, without importing torch."""

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

PROGRAM = """
import atexit, sys
sys.argv = ["rheoscope"]
atexit.register(lambda: print("torch" in sys.modules, file=sys.stderr))
from rheoscope.commands.app import main
main()
"""


def complete(shell: str, line: str) -> str:
    """What the shell is offered at the end of a line, by the protocol of its completion script."""
    words = line.split(" ")
    variables = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = os.environ | variables | {"_RHEOSCOPE_COMPLETE": f"complete_{shell}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == "False\n", done.stderr  # torch was not imported
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "offered", "absent"),
    [
        ("rheoscope tra", ["train"], ["flow"]),
        ("rheoscope analyse tra", ["trajectory", "transport"], ["energy"]),
        ("rheoscope --lang ", ["en", "zh"], ["flow"]),
        ("rheoscope race run --mechanisms tied,qk", ["tied,qk_norm"], ["metric"]),
        ("rheoscope race re", ["report"], ["run"]),
        ("rheoscope train ti", ["tiny"], ["digits"]),
        ("rheoscope flow --dtype bf", ["bfloat16"], ["float32"]),
        ("rheoscope dynamics rank", ["rank_collapse"], ["heat"]),
    ],
)
def test_names_are_completed(shell: str, line: str, offered: list[str], absent: list[str]) -> None:
    output = complete(shell, line)
    for name in offered:
        assert name in output
    for name in absent:
        assert name not in output


def test_a_text_without_a_command_completes_the_options_of_flow() -> None:
    assert complete("bash", "rheoscope keys --comp").split() == ["--compare"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_shown(shell: str) -> None:
    code = (
        "import sys; sys.argv = ['rheoscope', '--show-completion']\n"
        f"import shellingham; shellingham.detect_shell = lambda *_: ('{shell}', '')\n"
        "from rheoscope.commands.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"_RHEOSCOPE_COMPLETE=complete_{shell}" in done.stdout


def test_names_read_from_the_source_are_those_of_the_registries() -> None:
    assert completion.mechanism_names() == list(ZOO)
    assert completion.entrant_names() == list(ENTRANTS)
    assert completion.recipe_names() == list(RECIPES)
    assert completion.experiment_names() == list(EXPERIMENTS)
    assert completion.space_names() == list(SPACES)
    assert completion.analysis_names() == list(ANALYSIS_MODULES)
    assert {*ARM_NAMES, UNTOUCHED} == set(ARMS)
    assert "mechanism=metric" in completion.recipe_settings()
