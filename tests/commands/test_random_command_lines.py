"""Random command lines from the commands' own options: whatever is typed ends well.

The exit status is 0, 1 or 2, an error is one line without a stack trace, and no file of the user is lost.
`RHEOSCOPE_LINES=10000 pytest tests/commands/test_random_command_lines.py` tries more of them.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.commands.app import app
from rheoscope.models.checkpoint import save
from tests.commands.cases import run_rheoscope
from tests.report.cases import small

N_LINES = int(os.environ.get("RHEOSCOPE_LINES", "24"))
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SHORT_LINES = {
    "attention": ["--tokens", "x"],
    "bench": ["nothing"],
    "corpus": ["status", "nowhere"],
    "doctor": ["nothing"],
    "dynamics": ["--list"],
    "race": ["list"],
    "studio": ["--port", "x"],
}
"""Commands that take seconds, wait for a visitor or have subcommands → arguments that end at once."""
TEXTS = (
    "the keys to the cabinet are on the table", "a", "", " ", "a a a a a a", "\ufeffthe keys", "ключ 钥匙 🔑 \u202e\x07",
    "[bold]x[/]", "-", "--", "flow",
)  # fmt: skip
FILES = {
    "text.txt": b"the keys to the cabinet are on the table",
    "bom.txt": b"\xef\xbb\xbfthe keys to the cabinet",
    "empty.txt": b"",
    "bytes.txt": b"\xff\xfe\x00 the \x80 keys",
    "theirs.json": b'{"kept": true}',
    "theirs.html": b"<p>kept</p>",
    "[theirs].csv": b"kept",
}
NAMES = (
    *FILES,
    "folder",
    "new.html",
    "new.json",
    "no/such/folder.json",
    "",
    ".",
    "link.html",
    "new[1].html",
    "/",
    "/dev/null/x",
)
ANALYSIS_OPTIONS = ([], ["--seed", "1"], ["--draws", "2"], ["--token", "99"], ["--json", "theirs.json"])
ODD_VALUES = ("0", "1", "2", "-1", "99999999", "x", "", "nan", "1e400", "L1", "1.0", "symmetric", "rank 2", "[red]")


@dataclass(frozen=True)
class CommandLine:
    arguments: tuple[str, ...]
    stdin: str


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of a user: a small model, a folder, texts and foreign files."""
    root = tmp_path_factory.mktemp("home")
    save(small().network, root / "narrow", tokenizer=small().tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield root


def option_values(parameter: Any) -> st.SearchStrategy[str]:
    """Values that a user might type for an option, valid and invalid ones."""
    if parameter.name == "model":
        return st.sampled_from(["narrow"] * 12 + ["folder", "no-such-model", "", "text.txt", "../..", "[x]"])
    if "Path" in parameter.bare_type():
        return st.sampled_from(NAMES)
    if parameter.bare_type() == "int":
        return st.one_of(st.integers(0, 5).map(str), st.sampled_from(ODD_VALUES))
    if parameter.bare_type() == "float":
        return st.one_of(st.floats(0, 2).map(str), st.sampled_from(ODD_VALUES))
    return st.sampled_from((*TEXTS, *ODD_VALUES))


@st.composite
def command_lines(draw: st.DrawFn) -> CommandLine:
    """A command, some of its own options, a text, and sometimes an argument that it does not have."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    if name in SHORT_LINES:
        return CommandLine((name, *SHORT_LINES[name]), "")
    arguments = [name]
    if name == "analyse":
        arguments.append(draw(st.sampled_from([*sorted(ANALYSIS_MODULES), "nothing", ""])))
    options = [
        parameter
        for parameter in COMMANDS[name].params
        if parameter.param_type_name == "option" and parameter.name != "help"
    ]
    typed_options = st.lists(st.sampled_from(options), max_size=3, unique_by=lambda option: option.name)
    for option in draw(typed_options) if options else []:
        arguments += [draw(st.sampled_from(option.opts))] + ([] if option.is_flag else [draw(option_values(option))])
    if any(option.name == "model" for option in options) and not {"--model", "-m"} & set(arguments):
        arguments += ["-m", "narrow"]
    if name == "analyse":
        arguments += ["-m", "narrow", *draw(st.sampled_from(ANALYSIS_OPTIONS))]
    if name == "generate":
        arguments += ["--tokens", "3"]
    arguments += draw(st.lists(st.sampled_from(TEXTS), max_size=1)) if name != "train" else ["nothing"]
    arguments += draw(st.sampled_from([[]] * 8 + [["--nothing"], ["--seed"], ["extra"], ["--lang", "zh"]]))
    return CommandLine(tuple(arguments), draw(st.sampled_from(TEXTS)))


def reset_home(root: Path) -> set[str]:
    """Restore the directory and return the names in it."""
    for path in root.iterdir():
        if path.name != "narrow":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name, content in FILES.items():
        (root / name).write_bytes(content)
    (root / "folder").mkdir()
    (root / "folder" / "config.json").write_text("{")
    (root / "link.html").symlink_to("theirs.html")
    return {path.name for path in root.iterdir()}


@settings(max_examples=N_LINES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(line=command_lines())
def test_any_command_line_ends_well(home: Path, line: CommandLine) -> None:
    before = reset_home(home)
    outcome = run_rheoscope(*line.arguments, stdin=line.stdin.encode("utf-8", "surrogatepass"))
    event(f"{line.arguments[0]} {outcome.status}")
    assert outcome.status in (0, 1, 2), outcome.err
    assert "Traceback" not in outcome.out + outcome.err
    if outcome.status:
        assert outcome.err.strip().splitlines()[-1].startswith("rheoscope: "), outcome.err
    for name, content in FILES.items():
        assert (home / name).read_bytes() == content, f"{name} has changed"
    assert (home / "folder" / "config.json").read_text() == "{"
    new_names = {path.name for path in home.iterdir()} - before
    assert not [name for name in new_names if name.endswith((".tmp", ".part")) or name.startswith(".")], new_names
    assert outcome.status == 0 or not new_names, new_names
