"""What a new user sees: on any console, at any width, in words that can be typed, with tokens that can be read."""

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

import rheoscope as rs
from rheoscope.commands.app import main
from rheoscope.picture.blocks import Block
from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.console import console as plain_console
from rheoscope.report.layer_table import comparison_blocks
from rheoscope.report.report_plans import REPORTS
from rheoscope.report.terminal import WIDE_COLUMNS, Terminal
from rheoscope.space.results import Results
from tests.report.cases import small

TEXT = "The keys to the 中 are on the table"


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        return " ".join(self.out.split())


Run = Callable[..., Said]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command as it is typed, in this process, of a small model unless another one is named."""
    monkeypatch.chdir(tmp_path)
    given = rs.load

    def opened(source: str | None, *rest: Any, **more: Any) -> Any:
        return small() if source is None else given(source)

    monkeypatch.setattr("rheoscope.report.progress_bars.load_model", opened)
    monkeypatch.setattr("rheoscope.commands.analyse.load_model", opened)

    def typed(*words: str, encoding: str = "utf-8", width: int = 80, stdin: bytes = b"") -> Said:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["rheoscope", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2)]
        code = 0
        with monkeypatch.context() as inside:
            inside.setattr(sys, "stdout", streams[0])
            inside.setattr(sys, "stderr", streams[1])
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
        return Said(code, *(stream.buffer.getvalue().decode(encoding) for stream in streams))  # type: ignore[attr-defined]

    return typed


# Consoles


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_console_without_our_signs_is_shown_others_and_the_report_is_written(run: Run, encoding: str) -> None:
    said = run("analyse", "massive_tokens", TEXT + " κ 中", "--html", "report.html", encoding=encoding)
    assert said.code == 0
    assert Path("report.html").exists()
    assert " k " in said.out
    assert r"\u4e2d" in said.out
    assert "wrote report.html" in said.out


def test_files_are_written_before_anything_can_go_wrong_at_the_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, answers: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr("rheoscope.report.terminal.Terminal.print_skipped", broken)
    with pytest.raises(RuntimeError):
        run("analyse", "massive_tokens", TEXT, "--json", "all.json", "--html", "report.html")
    assert "massive_tokens" in json.loads(Path("all.json").read_text())
    assert Path("report.html").exists()


OPTIONS: dict[str, Any] = {
    "covers": {"draws": 2},
    "surgery": {"M": "symmetric", "heads": [(1, 0)]},
    "reverse": {},
    "operators": {"raw": True},
}


@pytest.mark.parametrize("job", ["flow", *OPTIONS])
def test_nothing_is_lost_on_a_narrow_console(job: str) -> None:
    """Every word and number that a broad console shows is there, and no line is longer than the console."""
    answers = fast() if job == "flow" else asked(job, OPTIONS[job])
    blocks = [block for one in REPORTS[job].sections if not one.page_only for block in one.blocks(answers)]
    same_at_any_width(blocks)


def test_nothing_is_lost_of_two_texts() -> None:
    same_at_any_width(comparison_blocks(fast(), fast()))


@cache
def fast() -> Results:
    return asked("flow", {}, nulls=False)


def asked(job: str, options: dict[str, Any], nulls: bool = True) -> Results:
    return run_analyses(Subject(small(), TEXT, small().trace(TEXT)), REPORTS[job].requests(options), nulls)


def same_at_any_width(blocks: list[Block]) -> None:
    broad = words_of(printed(blocks, WIDE_COLUMNS - 1), "")
    assert len(broad) > 20
    for width in (40, 60, 80):
        narrow = printed(blocks, width)
        assert max(map(cell_len, narrow.splitlines())) <= width
        assert broad <= words_of(narrow, "") | words_of(narrow, "\n")


def printed(blocks: list[Block], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for block in blocks:
        Terminal(console, []).print_block(block)
    return console.file.getvalue()  # type: ignore[attr-defined]


def words_of(said: str, folded: str) -> set[str]:
    """Words and numbers, also those that were folded."""
    return set(re.findall(r"[\w.κ−‖·-]+", said.replace(folded, "") if folded else said))


def test_a_compared_finding_says_which_text_it_is_about(run: Run) -> None:
    said = run(TEXT, "--compare", "The key to the cabinets is", "--no-html", "--fast", width=40)
    for at in (1, 2):
        assert f"Other significant findings (text {at})" in said.words
        assert f"L0 {at} " in said.words
    assert "Seven questions about this text in this model (text 2)" in said.words
    assert "--explain defines every column" in said.words
    assert "least=" not in said.words


def test_square_brackets_and_colons_are_what_they_are(run: Run) -> None:
    text = "[bold]a[/bold] [/] [red] :smile: keys to the table"
    said = run("analyse", "massive_tokens", text, "--json", "[red] a[/b].json")
    assert said.code == 0
    assert "wrote [red] a[/b].json" in said.out
    assert Path("[red] a[/b].json").exists()
    assert "[ b old ]" in said.out
    assert run("analyse", "[/x]").err.startswith("rheoscope: there is no analysis '[/x]'")
    assert "there is no file [/a]" in run("--file", "[/a]").err


def test_no_colour_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as inside:
            inside.setenv("TERM", "xterm-256color")
            inside.setenv("COLORTERM", "truecolor")
            inside.setenv(name, value)
            inside.setattr("sys.stdout", Tty())
            plain_console().print("a", style="green")
            assert "\x1b[32m" not in sys.stdout.getvalue()  # type: ignore[attr-defined]


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


# Messages


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("generate", "a", "--temperature", "-1"), "type --temperature 0.8"),
        (("generate", "a", "--top-p", "2"), "type --top-p 0.9"),
        (("analyse", "density_clusters", TEXT, "--least", "1"), "type --least 2"),
        (
            ("analyse", "fixed_point", TEXT, "--times", "0"),
            "times must lie between 1 and 10,000, got 0; type --times 1",
        ),
        (("train", "tiny", "--data", "a", "--out", "b", "--set", "rate=-1"), "type --set rate="),
        (("covers", "The keys"), "tokens has; type a longer text"),
        (
            ("reverse", "The keys to", "--target", "cabinet"),
            "is 3 ('c' 'ab' 'inet'); type another word, or the id of a token",
        ),
    ],
)
def test_advice_can_be_typed(run: Run, words: tuple[str, ...], says: str) -> None:
    said = run(*words)
    assert said.code == 1
    assert says in said.err
    assert len(said.err.splitlines()) == 1


def test_the_operators_of_the_default_model_need_no_name(run: Run) -> None:
    assert run("operators").code == run("analyse", "operators").code == 0


def test_reverse_tells_sizes_and_counts_heads(run: Run) -> None:
    """A target is found as it is typed, without the space that it begins with, or by its id."""
    word = next(one for one in ("cabinet", "however", "because") if len(small().encode(f" {one}")) == 2)
    said = run("reverse", TEXT, "--target", word)
    assert "(-0" not in said.out
    assert "The strongest of 12 heads has" in said.words
    assert f"−log p(·{word})" in said.words
    assert said.out == run("reverse", TEXT, "--target", f"#{small().encode(f' {word}')[-1]}").out


# Tokens


def test_spaces_and_characters_of_several_bytes_are_seen(run: Run) -> None:
    said = run("analyse", "massive_tokens", "The 中 😀 e\u0301\u200b").out
    assert "⟨e4⟩ ⟨b8⟩ 中" in said
    assert "⟨f0⟩ ⟨9f⟩ ⟨98⟩ 😀" in said
    assert "◌\u0301" in said
    assert "⟨U+200B⟩" in said
    assert "�" not in said


def test_a_byte_order_mark_is_no_token_and_is_said(run: Run) -> None:
    Path("bom.txt").write_text("The keys", encoding="utf-8-sig")
    plain = run("analyse", "trajectory", "The keys")
    ways = [("\ufeffThe keys",), ("--file", "bom.txt"), ("-",)]
    for way in ways:
        said = run("analyse", "trajectory", *way, stdin=b"\xef\xbb\xbfThe keys\n")
        assert said.out == plain.out
        assert "byte order mark" in said.err


def test_bytes_that_are_no_text_are_refused_in_one_line(run: Run) -> None:
    assert "standard input is not UTF-8 (byte 3)" in run("generate", "-", stdin=b"caf\xe9").err
    assert "the text is no UTF-8 at character 3" in run("generate", "caf\udce9").err
    assert "the text is no UTF-8" in run("caf\udce9").err
