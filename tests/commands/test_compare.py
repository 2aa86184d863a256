"""`rheoscope compare`: what it prints and writes, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.cases import run_rheoscope

TEXT = "the keys to the cabinet"


def test_two_models_are_compared_on_texts_with_all_files(models: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text(
        "\n".join([TEXT, "the house", "a small town", "in the night"]), encoding="utf-8"
    )
    files = ("--json", "both.json", "--csv", "tables", "--html", "both.html", "--explain")
    pair = (str(models / "far"), str(models / "hard"))
    outcome = run_rheoscope("compare", *pair, "--texts", "texts.txt", *files, cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "The predictions differ by" in outcome.words
    assert "4 texts" in outcome.words
    result = json.loads((tmp_path / "both.json").read_text())["compare"]
    assert result["dims"]["text"] == 4
    assert {"kl", "kl_low", "kl_high"} <= set(result["data_vars"])
    assert (tmp_path / "tables" / "compare.layer_head.csv").exists()
    assert "<svg" in (tmp_path / "both.html").read_text()


def test_a_model_and_itself_in_chinese(models: Path, tmp_path: Path) -> None:
    pair = (str(models / "far"), str(models / "far"))
    outcome = run_rheoscope("compare", *pair, TEXT, "--lang", "zh", cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "两个模型的权重相同" in outcome.words


def test_without_a_text_only_weights_are_compared(models: Path, tmp_path: Path) -> None:
    outcome = run_rheoscope("compare", str(models / "far"), str(models / "gpt2"), cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "Weights that need no common coordinates" in outcome.words
    assert "predictions" not in outcome.words


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("a text", "--texts", "texts.txt"), "--texts and TEXT exclude each other"),
        (("a text", "--revisions", "step1"), "needs one name for each of the two models, got 1"),
    ],
)
def test_bad_usage_is_refused_in_one_line(arguments: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    outcome = run_rheoscope("compare", "default", "default", *arguments, cwd=tmp_path)
    assert outcome.status == 2
    assert problem in outcome.err
    assert outcome.err.count("\n") == 1


def test_an_empty_text_is_refused_before_a_model_is_loaded(refused: Callable[..., str]) -> None:
    assert "the text is empty" in refused("compare", "default", "default", " ")
