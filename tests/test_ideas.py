"""The page from idea to command: every command on it runs, and every analysis that tests an idea is on it."""

import re
import shlex
from pathlib import Path

import pytest

import rheoscope as rheoscope_package
from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.commands.app import main
from rheoscope.models.checkpoint import save
from rheoscope.report import theorem_table, theory_report
from tests.report.cases import small
from tests.theory.cases import done

PAGE = (Path(__file__).parents[1] / "docs" / "ideas.md").read_text(encoding="utf-8")
COMMANDS = list(dict.fromkeys(re.findall(r"`(rheoscope [^`]+)`", PAGE)))
TEXT = "The keys to the cabinet are on the table, and the table is in the hall"
FLOW = Path(rheoscope_package.__file__).parent / "flow"
FEW = {"senses": 16, "relatedness": 12}
"""Of the lists that ship: the first lines, two words or two groups."""


OF_A_MODEL = ("analyse", "covers", "operators", "reverse", "surgery")
QUICK = {
    "agreement": ["--draws", "2"], "stack": ["--draws", "2"], "charts": ["--draws", "2"], "relation_swap": ["--draws", "1"],
    "heat": ["--draws", "3"], "boundary": ["--iterations", "2", "--layers", "1"],
    "fixed_point": ["--iterations", "3", "--layers", "1"],
    "covers": ["--fast", "--no-untrained"],
    "senses": ["--draws", "20"], "relatedness": ["--draws", "20"], "distortion": ["--draws", "3"],
}  # fmt: skip
"""Settings with which a command does the same in less time."""


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The directory of a narrow model: that a command runs does not hang on the width."""
    return str(save(small().network, tmp_path_factory.mktemp("narrow") / "model", tokenizer=small().tokenizer))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs(
    command: str, narrow: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for of_the_bench in (theory_report, theorem_table):  # done once in a run of the suite
        monkeypatch.setattr(of_the_bench, "dynamics", done)
    monkeypatch.chdir(tmp_path)
    _, *words = shlex.split(command)
    if (name := words[-1]) in FEW:
        lines = (FLOW / name / f"{name}.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / "words.tsv").write_text(
            "".join([one for one in lines if not one.startswith("#")][: FEW[name]]), encoding="utf-8"
        )
        words += ["--word-list", "words.tsv"]
    words += QUICK.get(name if name in FEW else words[1] if words[0] == "analyse" else words[0], [])
    words += ["--model", narrow] if words[0] in OF_A_MODEL else []
    monkeypatch.setattr("sys.argv", ["rheoscope", *(TEXT if word == "TEXT" else word for word in words)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert (end.value.code or 0) == 0, said.err
    assert said.out


def test_the_page_has_commands_of_every_room() -> None:
    assert len(COMMANDS) > 25
    typed = {command.split()[2] for command in COMMANDS if command.split()[1] == "analyse"}
    assert typed <= set(ANALYSIS_MODULES)


@pytest.mark.parametrize(
    "word",
    ["Wasserstein", "boundary condition", "Lagrangian", "stacked", "fixed points", "Definition 2", "not efficient"],
)
def test_the_documents_own_words_are_found(word: str) -> None:
    assert word in PAGE
