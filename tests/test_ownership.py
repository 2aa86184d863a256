"""An analysis owns everything about itself: no other file names it, apart from the catalogue and declared relations."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rheoscope.catalogue import ANALYSIS_MODULES, analysis_by_name
from tests.source_files import nodes

SOURCE = Path(__file__).resolve().parent.parent / "src" / "rheoscope"
OTHER_MEANINGS = {
    ("attention/theorems.py", "scores"): "the name of a theorem",
    ("attention/theorems.py", "reversed_attention"): "the name of a theorem",
    ("theory/", "energy"): "an experiment on particles",
    ("theory/", "heat"): "an experiment on particles",
    ("report/theorem_table.py", "energy"): "an experiment on particles",
    ("report/theorem_table.py", "heat"): "an experiment on particles",
    ("report/pictures/dynamics.py", "heat"): "an experiment on particles",
    ("covers/fixed_point/", "boundary"): "a field of fixed_point",
    ("flow/density_clusters/", "clusters"): "the name of a line in a plot",
    ("learn/monitor/", "agreement"): "a quantity of the monitor",
    ("studio/detail_queries.py", "scores"): "a kind of map",
    ("studio/head_detail.py", "agreement"): "an array of the wire format",
    ("studio/particle_simulation.py", "clusters"): "a number of the wire format",
    ("pretrained/finder/", "stack"): "an operation of PyTorch",
    ("commands/", "operators"): "a command",
    ("commands/", "patch"): "a command",
    ("commands/", "surgery"): "a command",
}
"""(file or folder, name) → what the word means there. These words do not refer to the analysis."""


def text_constants(source: str) -> Iterator[tuple[int, str]]:
    """All strings of a file with their lines, without docstrings and other bare strings."""
    bare = {id(node.value) for node in nodes(source) if isinstance(node, ast.Expr)}
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value


def allowed_names(file: str) -> set[str]:
    """The analyses that a file may name: its own, those that its own declares, and words with another meaning."""
    allowed = {name for (place, name) in OTHER_MEANINGS if file.startswith(place)}
    for name, module in ANALYSIS_MODULES.items():
        if file.startswith("/".join(module.split(".")[1:-1]) + "/"):
            spec = analysis_by_name(name)
            allowed |= {name, *spec.depends_on, *spec.shown_with, *spec.see_also}
    return allowed


def foreign_names(file: str, source: str) -> list[str]:
    """The places where a file names an analysis that is not its own."""
    foreign = ANALYSIS_MODULES.keys() - allowed_names(file)
    return [f"{file}:{line}: {text}" for line, text in text_constants(source) if text in foreign]


@cache
def source_files() -> dict[str, str]:
    files = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
    return {file: path.read_text(encoding="utf-8") for file, path in files.items() if file != "catalogue.py"}


def test_no_file_names_an_analysis_of_another_folder() -> None:
    assert [place for file, source in source_files().items() for place in foreign_names(file, source)] == []


@pytest.mark.parametrize(("place", "name"), OTHER_MEANINGS)
def test_every_exception_is_used(place: str, name: str) -> None:
    sources = [source for file, source in source_files().items() if file.startswith(place)]
    assert any(text == name for source in sources for _, text in text_constants(source))


def test_a_foreign_name_is_found() -> None:
    planted = '"""transport"""\nNAMES = ("transport", "clusters")\n'
    assert foreign_names("report/findings.py", planted) == [
        "report/findings.py:2: transport",
        "report/findings.py:2: clusters",
    ]
    assert foreign_names("flow/purity/words.py", planted) == ["flow/purity/words.py:2: transport"]


def test_declared_relations_are_between_analyses() -> None:
    for name in ANALYSIS_MODULES:
        spec = analysis_by_name(name)
        assert {*spec.depends_on, *spec.shown_with, *spec.see_also} <= ANALYSIS_MODULES.keys() - {name}
