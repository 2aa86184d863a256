"""Tests of docs/ideas.md: every command on the page runs, and the page contains the phrases of the source document."""

import re
import shlex
from pathlib import Path

import pytest

import rheoscope as rheoscope_package
from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.commands.app import run_command_line
from rheoscope.models.checkpoint import save
from rheoscope.report import theorem_table, theory_report
from tests.report.cases import small
from tests.theory.cases import done

PAGE = (Path(__file__).parents[1] / "docs" / "ideas.md").read_text(encoding="utf-8")
COMMANDS = list(dict.fromkeys(re.findall(r"`(rheoscope [^`]+)`", PAGE)))
TEXT = "The keys to the cabinet are on the table, and the table is in the hall"
FLOW = Path(rheoscope_package.__file__).parent / "flow"
LIST_LENGTHS = {"senses": 16, "relatedness": 12}
"""The number of lines used of the word lists in the package: two words or two groups."""


WITH_MODEL = ("analyse", "covers", "operators", "reverse", "surgery")
FAST_OPTIONS = {
    "agreement": ["--draws", "2"], "stack": ["--draws", "2"], "charts": ["--draws", "2"], "relation_swap": ["--draws", "1"],
    "heat": ["--draws", "3"], "boundary": ["--iterations", "2", "--layers", "1"],
    "fixed_point": ["--iterations", "3", "--layers", "1"],
    "covers": ["--fast", "--no-untrained"],
    "train": ["--steps", "2", "--set", "vocabulary=characters"],
    "senses": ["--draws", "20"], "relatedness": ["--draws", "20"], "distortion": ["--draws", "3"],
}  # fmt: skip
"""Options that make a command faster."""


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a small model, for speed."""
    return str(save(small().network, tmp_path_factory.mktemp("narrow") / "model", tokenizer=small().tokenizer))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(
    command: str, small_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (theory_report, theorem_table):  # computed once per test session
        monkeypatch.setattr(module, "dynamics", done)
    monkeypatch.chdir(tmp_path)
    _, *arguments = shlex.split(command)
    if (name := arguments[-1]) in LIST_LENGTHS:
        lines = (FLOW / name / f"{name}.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / "words.tsv").write_text(
            "".join([line for line in lines if not line.startswith("#")][: LIST_LENGTHS[name]]), encoding="utf-8"
        )
        arguments += ["--word-list", "words.tsv"]
    arguments += FAST_OPTIONS.get(
        name if name in LIST_LENGTHS else arguments[1] if arguments[0] == "analyse" else arguments[0], []
    )
    arguments += ["--model", small_model] if arguments[0] in WITH_MODEL else []
    (tmp_path / "page.txt").write_text(PAGE, encoding="utf-8")
    values = {"TEXT": TEXT, "FILE": "page.txt"}
    monkeypatch.setattr("sys.argv", ["rheoscope", *(values.get(argument, argument) for argument in arguments)])
    status = run_command_line()
    output = capsys.readouterr()
    assert status == 0, output.err
    assert output.out


def test_the_page_has_many_commands_and_their_analyses_exist() -> None:
    assert len(COMMANDS) > 25
    analyses = {command.split()[2] for command in COMMANDS if command.split()[1] == "analyse"}
    assert analyses <= set(ANALYSIS_MODULES)


def rendered(number: float, digits: int = 3) -> str:
    """A number as the pages print it: .013, −.189, −2.290."""
    return re.sub(r"^(-?)0\.", r"\1.", f"{number:.{digits}f}").replace("-", "−")


def test_the_results_page_has_the_card_of_the_default_model() -> None:
    results = (Path(__file__).parents[1] / "docs" / "results" / "ideas.md").read_text(encoding="utf-8")
    card = rheoscope_package.card(rheoscope_package.load())
    for name in card.claim.values:
        row = card.sel(claim=name)
        estimate, low, high = (rendered(float(row[field])) for field in ("estimate", "low", "high"))
        assert f"| {row.statement.item()} | {row.answer.item()} | {estimate} ({low} to {high}) |" in results


@pytest.mark.parametrize(
    "interval",
    [
        "similarity",
        "deformation",
        "symmetry",
        "recovery",
        "relation",
        "erasure",
        "rest",
        "identity",
        "directions",
        "senses",
        "next_token.share",
        "next_token.beyond_predictions",
        "asymmetry",
    ],
)
def test_the_page_quotes_the_intervals_of_the_shipped_card(interval: str) -> None:
    row = rheoscope_package.card(rheoscope_package.load()).sel(interval=interval)
    low, high = float(row.part_low), float(row.part_high)
    assert any(f"({rendered(low, digits)} to {rendered(high, digits)})" in PAGE for digits in (2, 3))


def test_every_row_has_a_status() -> None:
    statuses = re.findall(r"^\| \*\*(.+?)\*\* \| [A-Z]", PAGE, flags=re.M)
    rows = [line for line in PAGE.splitlines() if re.search(r"\| `rheoscope ", line)]
    assert len(statuses) == 5
    for row in rows:
        assert any(f"**{status}" in row.split("|")[-2] for status in statuses), row


@pytest.mark.parametrize(
    "phrase",
    ["Wasserstein", "boundary condition", "Lagrangian", "stacked", "fixed points", "Definition 2", "not efficient"],
)
def test_the_page_has_the_phrases_of_the_source_document(phrase: str) -> None:
    assert phrase in PAGE
