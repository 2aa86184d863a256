"""Whatever is typed, the command answers in its own words: command lines made at random from the command's own options.

Texts, values, files that are missing, empty, broken, a directory or somebody else's. However it ends, there is no traceback,
the exit status is one of the three that are told, an error is one line, and no file that was there is lost.
`RHEOSCOPE_LINES=10000 pytest tests/test_first_day.py` makes more of them.
"""

import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from rheoscope.catalogue import ANALYSIS_MODULES
from rheoscope.commands.app import app, main
from rheoscope.models.checkpoint import save
from tests.report.cases import small

LINES = int(os.environ.get("RHEOSCOPE_LINES", "24"))
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SLOW = {"attention", "bench", "dynamics", "studio"}
"""They take seconds or wait for a visitor whatever is typed: of these only what ends at once."""
ENDS = {"attention": ["--tokens", "x"], "bench": ["nothing"], "dynamics": ["--list"], "studio": ["--port", "x"]}
TEXTS = (
    "the keys to the cabinet are on the table", "a", "", " ", "a a a a a a", "\ufeffthe keys", "ключ 钥匙 🔑 \u202e\x07",
    "[bold]x[/]", "-", "--", "flow",
)  # fmt: skip
"""Of ordinary length: what is odd about them is what they are made of."""
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
OF_AN_ANALYSIS = ([], ["--seed", "1"], ["--draws", "2"], ["--token", "99"], ["--json", "theirs.json"])
ODD = ("0", "1", "2", "-1", "99999999", "x", "", "nan", "1e400", "L1", "1.0", "symmetric", "rank 2", "[red]")


@dataclass(frozen=True)
class Line:
    """What is typed."""

    words: tuple[str, ...]
    stdin: str


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of a user: a narrow model, a folder, texts and files of others."""
    root = tmp_path_factory.mktemp("house")
    save(small().network, root / "narrow", tokenizer=small().tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield root


def value(parameter: Any) -> st.SearchStrategy[str]:
    """A value that somebody might type behind an option: what its kind takes, and what it does not."""
    if parameter.name == "model":
        return st.sampled_from(["narrow"] * 12 + ["folder", "no-such-model", "", "text.txt", "../..", "[x]"])
    if "Path" in parameter.bare_type():
        return st.sampled_from(NAMES)
    if parameter.bare_type() == "int":
        return st.one_of(st.integers(0, 5).map(str), st.sampled_from(ODD))
    if parameter.bare_type() == "float":
        return st.one_of(st.floats(0, 2).map(str), st.sampled_from(ODD))
    return st.sampled_from((*TEXTS, *ODD))


@st.composite
def lines(draw: st.DrawFn) -> Line:
    """A command, some of its own options, a text, and now and then a word that is none of them."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    words = [name]
    if name in SLOW:
        return Line((name, *ENDS[name]), "")
    if name == "analyse":
        words.append(draw(st.sampled_from([*sorted(ANALYSIS_MODULES), "nothing", ""])))
    options = [one for one in COMMANDS[name].params if one.param_type_name == "option" and one.name != "help"]
    for one in draw(st.lists(st.sampled_from(options), max_size=3, unique_by=lambda o: o.name)) if options else []:
        words += [draw(st.sampled_from(one.opts))] + ([] if one.is_flag else [draw(value(one))])
    if any(one.name == "model" for one in options) and not {"--model", "-m"} & set(words):
        words += ["-m", "narrow"]
    if name == "analyse":
        words += ["-m", "narrow", *draw(st.sampled_from(OF_AN_ANALYSIS))]
    if name == "generate":
        words += ["--tokens", "3"]
    words += draw(st.lists(st.sampled_from(TEXTS), max_size=1)) if name != "train" else ["nothing"]
    words += draw(st.sampled_from([[]] * 8 + [["--nothing"], ["--seed"], ["extra"]]))
    return Line(tuple(words), draw(st.sampled_from(TEXTS)))


def typed(line: Line) -> tuple[int, str, str]:
    """Exit status, what was printed and what was told on stderr; anything raised comes through."""
    out, error = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "argv", ["rheoscope", *line.words])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line.stdin.encode("utf-8", "surrogatepass"))))
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), out.getvalue(), error.getvalue()
    return 0, out.getvalue(), error.getvalue()


def renewed(root: Path) -> set[str]:
    """The house as it was before; gives the names in it."""
    for one in root.iterdir():
        if one.name != "narrow":
            shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
    for name, content in FILES.items():
        (root / name).write_bytes(content)
    (root / "folder").mkdir()
    (root / "folder" / "config.json").write_text("{")
    (root / "link.html").symlink_to("theirs.html")
    return {one.name for one in root.iterdir()}


@settings(max_examples=LINES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(line=lines())
def test_any_line_ends_well(house: Path, line: Line) -> None:
    before = renewed(house)
    status, printed, told = typed(line)
    event(f"{line.words[0]} {status}")
    assert status in (0, 1, 2), told
    assert "Traceback" not in printed + told
    if status == 1:
        last = told.strip().splitlines()[-1]
        assert last.startswith("rheoscope: "), told
    for name, content in FILES.items():
        assert (house / name).read_bytes() == content, f"{name} is another file now"
    assert (house / "folder" / "config.json").read_text() == "{"
    left = {one.name for one in house.iterdir()} - before
    assert not [name for name in left if name.endswith((".tmp", ".part")) or name.startswith(".")], left
    assert status == 0 or not left, left
