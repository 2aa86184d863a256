"""Printed output: any console encoding and width, tokens that can be read, and advice that can be typed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import Run
from tests.report.cases import small

TEXT = "The keys to the 中 are on the table"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_characters_that_the_console_lacks_are_replaced_and_the_report_is_written(run: Run, encoding: str) -> None:
    outcome = run("analyse", "massive_tokens", TEXT + " κ 中", "--html", "report.html", encoding=encoding)
    assert outcome.status == 0
    assert Path("report.html").exists()
    assert " k " in outcome.out
    assert r"\u4e2d" in outcome.out
    assert "wrote report.html" in outcome.out


def test_files_are_written_before_the_last_lines_are_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, results: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr("rheoscope.report.terminal.Terminal.print_skipped", fail)
    with pytest.raises(RuntimeError):
        run("analyse", "massive_tokens", TEXT, "--json", "all.json", "--html", "report.html")
    assert "massive_tokens" in json.loads(Path("all.json").read_text())
    assert Path("report.html").exists()


def test_findings_of_two_texts_name_their_text(run: Run) -> None:
    outcome = run(TEXT, "--compare", "The key to the cabinets is", "--no-html", "--fast", width=40)
    for number in (1, 2):
        assert f"Significant findings (text {number})" in outcome.words
        assert f"L0 {number} " in outcome.words
    assert "What happens to this text (text 2)" in outcome.words
    assert "--explain defines every column" in outcome.words
    assert "least=" not in outcome.words


def test_square_brackets_and_colons_are_printed_unchanged(run: Run) -> None:
    text = "[bold]a[/bold] [/] [red] :smile: keys to the table"
    outcome = run("analyse", "massive_tokens", text, "--json", "[red] a[/b].json")
    assert outcome.status == 0
    assert "wrote [red] a[/b].json" in outcome.out
    assert Path("[red] a[/b].json").exists()
    assert "[ b old ]" in outcome.out
    assert run("analyse", "[/x]").err.startswith("rheoscope: there is no analysis '[/x]'")
    assert "there is no file [/a]" in run("--file", "[/a]").err


@pytest.mark.parametrize("width", [0, 1, 20, 200])
def test_every_width_prints_the_same_words(run: Run, width: int) -> None:
    outcome = run("analyse", "massive_tokens", "The keys", width=width)
    assert outcome.status == 0
    assert "massive" in "".join(outcome.out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "a", "--temperature", "-1"), "type --temperature 0.8"),
        (("generate", "a", "--top-p", "2"), "type --top-p 0.9"),
        (("analyse", "density_clusters", TEXT, "--min-cluster-size", "1"), "type --min-cluster-size 2"),
        (
            ("analyse", "fixed_point", TEXT, "--applications", "0"),
            "applications must lie between 1 and 10,000, got 0; type --applications 1",
        ),
        (("train", "tiny", "--data", "a", "--out", "b", "--set", "rate=-1"), "type --set rate="),
        (("covers", "The keys"), "has that many; use a longer text"),
        (
            ("reverse", "The keys to", "--target", "cabinet"),
            "is 3 ('c' 'ab' 'inet'); use another word or a token id",
        ),
    ],
)
def test_advice_can_be_typed(run: Run, arguments: tuple[str, ...], message: str) -> None:
    outcome = run(*arguments)
    assert outcome.status == 1
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_the_default_model_needs_no_name(run: Run) -> None:
    assert run("operators").status == run("analyse", "operators").status == 0


def test_reverse_accepts_a_target_by_its_text_or_its_id(run: Run) -> None:
    target = next(
        argument for argument in ("cabinet", "however", "because") if len(small().encode(f" {argument}")) == 2
    )
    outcome = run("reverse", TEXT, "--target", target)
    assert "(-0" not in outcome.out
    assert "The strongest of 12 heads has" in outcome.words
    assert f"−log p(·{target})" in outcome.words
    assert outcome.out == run("reverse", TEXT, "--target", f"#{small().encode(f' {target}')[-1]}").out


def test_spaces_and_characters_of_several_bytes_are_visible(run: Run) -> None:
    out = run("analyse", "massive_tokens", "The 中 😀 e\u0301\u200b").out
    assert "⟨e4⟩ ⟨b8⟩ 中" in out
    assert "⟨f0⟩ ⟨9f⟩ ⟨98⟩ 😀" in out
    assert "◌\u0301" in out
    assert "⟨U+200B⟩" in out
    assert "�" not in out


def test_a_byte_order_mark_is_removed_with_a_notice(run: Run) -> None:
    Path("bom.txt").write_text("The keys", encoding="utf-8-sig")
    plain = run("analyse", "trajectory", "The keys")
    for source in (("\ufeffThe keys",), ("--file", "bom.txt"), ("-",)):
        outcome = run("analyse", "trajectory", *source, stdin=b"\xef\xbb\xbfThe keys\n")
        assert outcome.out == plain.out
        assert "byte order mark" in outcome.err


def test_bytes_that_are_not_utf8_are_refused_in_one_line(run: Run) -> None:
    assert "standard input is not UTF-8 text (byte 3)" in run("generate", "-", stdin=b"caf\xe9").err
    assert "the text is not UTF-8 at character 3" in run("generate", "caf\udce9").err
    assert "the text is not UTF-8" in run("caf\udce9").err
