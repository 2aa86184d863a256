"""The examples of the how-to pages, applied to a copy of the source tree, pass the tests of tests/laws."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from tests.processes import run_in_fork, unload_packages

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", ".ci", "examples", "benchmarks", "frontend/src")
COPIED_FILES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "Makefile",
    "pyproject.toml",
    "mkdocs.yml",
)
FENCE = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.M | re.S)
MAX_PLACES = 2
PAGES = ("add_an_analysis.md", "add_a_mechanism.md", "add_a_family.md")
TESTS_OF_THE_TREE = ("test_architecture", "test_ownership", "test_language", "test_message", "test_no_text_surgery")
"""Files of tests that read the whole source tree; all of their tests run."""
FILES = (
    "src/rheoscope/flow/radius.py",
    "tests/laws/every_analysis.py",
    "tests/laws/every_family.py",
    "tests/laws/every_mechanism.py",
    "tests/messages",
    "tests/pictures/test_pictures.py",
    "tests/pretrained",
    "tests/test_architecture.py",
    "tests/test_catalogue.py",
    "tests/test_language.py",
    "tests/test_ownership.py",
)
ADDED = ("radius", "softplus", "seed_oss", "every_family_has_a_case")
"""Words in the names of the tests of the three additions."""
TEST_OF_PLACES = "tests/test_places.py"
WHERE_THEY_APPEAR = """
from pathlib import Path

from rheoscope.corpus.corpus_job import Job
from rheoscope.corpus.corpus_run import run_job
from rheoscope.report.report_sections import text_analyses
from rheoscope.studio.descriptions import catalogue_json
from tests.attention.cases import without_jaxtyping_checks
from tests.commands.cases import run_rheoscope


def places_of_radius_and_softplus():
    command = run_rheoscope("analyse", "radius", "The keys to the cabinet are", "--json", "radius.json")
    assert command.status == 0, command.err
    if "L5.resid_post" in command.out and '"radius"' in Path("radius.json").read_text():
        yield "command"
    if "radius" in text_analyses():
        yield "report"
    if "radius" in [analysis["name"] for analysis in catalogue_json()["analyses"]]:
        yield "page"
    Path("notes.txt").write_text("The keys to the cabinet are on the table. " * 3)
    run_job(Job(texts=("notes.txt",), analyses={"radius": {}}, length=16, least=4), Path("run"))
    if list(Path("run").rglob("radius*")):
        yield "corpus"
    if "softplus(s)/Σ" in run_rheoscope("attention", width=120).out:
        yield "mechanisms"


def test_where_radius_appears():
    with without_jaxtyping_checks():  # as users run commands
        Path("places.txt").write_text(" ".join(places_of_radius_and_softplus()))
"""
"""A test of the copy, which lists where the additions appear without further code."""
WITHOUT_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:unraisableexception")
"""The second one would collect the garbage of the whole fork at its end."""


def copy_tree(target: Path) -> Path:
    """A copy with the compiled files, which are valid for the copy too. Files that are being written are left out."""
    for folder in COPIED:
        shutil.copytree(ROOT / folder, target / folder, ignore=ignored_names)
    for file in COPIED_FILES:
        shutil.copy(ROOT / file, target / file)
    return target


def ignored_names(folder: str, names: list[str]) -> set[str]:
    """The files that the copy does not need: built ones, and tests that do not run in it."""
    built = shutil.ignore_patterns("*.pyc.*", "node_modules", "page", "*.json.gz")(folder, names)
    return built | {name for name in names if is_idle_test(Path(folder) / name)}


def is_idle_test(file: Path) -> bool:
    """Whether a file is a test that does not run in the copy, or is compiled from one."""
    folder = file.parents[1] if file.parent.name == "__pycache__" else file.parent
    source = folder.relative_to(ROOT) / f"{file.name.partition('.')[0]}.py"
    return source.name.startswith(("test_", "every_")) and not str(source).startswith(FILES)


def examples(page: str) -> list[tuple[str, str, str]]:
    """(language, path, content) of every block of a page that has a path as its title."""
    return FENCE.findall((ROOT / "docs" / "how-to" / page).read_text(encoding="utf-8"))


def apply_page(page: str, tree: Path) -> list[str]:
    """Write the new files of a page and apply its diffs; return the paths."""
    paths = []
    for language, path, content in examples(page):
        file = tree / path
        if language == "diff":
            file.write_text(apply_diff(file.read_text(encoding="utf-8"), content), encoding="utf-8")
        else:
            assert not file.exists(), f"{path} exists; the example must be a new file"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        paths.append(path)
    return paths


def apply_diff(text: str, diff: str) -> str:
    """Apply hunks that are separated by `@@`. The unmarked lines of a hunk must occur exactly once in the text.

    >>> apply_diff("a\\nb\\n", " a\\n+new\\n b\\n")
    'a\\nnew\\nb\\n'
    """
    for hunk in re.split(r"^@@\n", diff, flags=re.M):
        old = "".join(f"{line[1:]}\n" for line in hunk.splitlines() if not line.startswith("+"))
        new = "".join(f"{line[1:]}\n" for line in hunk.splitlines() if not line.startswith("-"))
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text


def run_in(tree: Path, work: Callable[[], Any]) -> subprocess.CompletedProcess[str]:
    """Do this work in a fork that imports Rheoscope and its tests from the copy. torch is already imported there."""

    def work_in_tree() -> None:
        for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST"):
            os.environ.pop(name, None)
        unload_packages("tests", "jaxtyping", "beartype")  # beartype caches types by their names
        here = {str(ROOT), str(ROOT / "src")}
        sys.path[:] = [str(tree), str(tree / "src"), *(folder for folder in sys.path if folder not in here)]
        os.chdir(tree)
        work()

    return run_in_fork(work_in_tree, PYTHONPATH=str(tree / "src"), COLUMNS="120")


def run_tests(tree: Path, *arguments: str) -> str:
    """Run tests of the copy and return the output of pytest. Every selected test must pass."""
    result = run_in(tree, lambda: sys.exit(pytest.main(["-q", *WITHOUT_PLUGINS, *arguments])))
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert re.search(r"\d+ passed", result.stdout)
    return result.stdout


@pytest.mark.slow
def test_the_examples_pass_all_laws_and_appear_everywhere(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    for page in PAGES:
        assert len(apply_page(page, tree)) <= MAX_PLACES, page
    run_path(str(tree / ".ci" / "source_tree.py"), run_name="__main__")  # part of `make readme`
    (tree / TEST_OF_PLACES).write_text(WHERE_THEY_APPEAR, encoding="utf-8")
    output = run_tests(tree, *FILES, TEST_OF_PLACES, "-k", " or ".join(ADDED + TESTS_OF_THE_TREE))
    assert "without a translation: How wide is the cloud" in output
    places = (tree / "places.txt").read_text(encoding="utf-8")
    assert places.split() == ["command", "report", "page", "corpus", "mechanisms"]


def test_a_diff_that_does_not_fit_fails() -> None:
    with pytest.raises(AssertionError, match="occurs 0 times"):
        apply_diff("a\n", " b\n+c\n")
