"""What each command prints and writes on a normal run."""

import json
from pathlib import Path

import pytest
import torch

from tests.commands.cases import run_rheoscope

SETTINGS = ["width=16", "depth=1", "heads=2", "batch=4", "context=16", "evaluate_every=2", "vocabulary=characters"]
FLOW_ANALYSES = {
    "frames",
    "readout",
    "trajectory",
    "transport",
    "geometry_kept",
    "clusters",
    "purity",
    "massive_tokens",
    "energy",
}
COVER_ANALYSES = {
    "agreement",
    "distorted_pairs",
    "score_attribution",
    "scores",
    "head_statistics",
    "head_types",
    "operators",
}


def test_attention_prints_and_writes_every_mechanism(tmp_path: Path) -> None:
    outcome = run_rheoscope("attention", "--json", "laws.json", "--explain", cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "metric" in outcome.out
    assert "sdpa" in outcome.out
    assert "not sdpa" in outcome.out
    assert (tmp_path / "rheoscope-attention.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "rheoscope-attention.html").read_text()
    assert "data:image/png;base64" in page
    assert "http" not in page
    law = json.loads((tmp_path / "laws.json").read_text())["metric"]["laws"]["dot_form"]
    assert law["violation"] <= law["tolerance"]


def test_operators_of_a_directory(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9, n_positions=16)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    files = ("--json", "heads.json", "--html", "heads.html")
    outcome = run_rheoscope("operators", "-m", "model", *files, "--explain", cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "exact on 8 tokens" in outcome.out
    result = json.loads((tmp_path / "heads.json").read_text())["operators"]
    assert result["dims"]["layer"] == 2
    assert len(result["data_vars"]["symmetry"]["data"][0]) == 2
    assert "<svg" in (tmp_path / "heads.html").read_text()


def test_operators_decompose_the_scores_on_a_text(models: Path, tmp_path: Path) -> None:
    arguments = ["operators", "-m", str(models / "far"), "--text", "the keys", "--json", "heads.json"]
    outcome = run_rheoscope(*arguments, cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "shares of what softmax sees" in outcome.words
    assert {"operators", "scores"} <= set(json.loads((tmp_path / "heads.json").read_text()))


def test_operators_use_the_default_model(tmp_path: Path) -> None:
    outcome = run_rheoscope("operators", "--csv", "tables", cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "the default model" in outcome.out
    assert "Range over heads" in outcome.out
    assert (tmp_path / "tables" / "operators.layer_head.csv").read_text().startswith("layer,head,symmetry")


def test_the_main_job_prints_and_writes_every_analysis(models: Path, tmp_path: Path) -> None:
    arguments = ["the keys to the cabinet are", "-m", str(models / "far"), "--json", "keys.json", "--full", "--explain"]
    outcome = run_rheoscope(*arguments, cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    for text in (
        "t h e · k e y s",
        "likeliest next tokens",
        "straight",
        "symmetry",
        "wrote keys.json",
        "wrote report.html",
    ):
        assert text in outcome.out
    results = json.loads((tmp_path / "keys.json").read_text())
    assert set(results) == FLOW_ANALYSES | COVER_ANALYSES | {"findings", "story", "written_by"}
    assert results["findings"]["attrs"]["tested"] > 5


def test_the_main_job_uses_the_default_model(tmp_path: Path) -> None:
    outcome = run_rheoscope("The keys to the cabinet are", "--fast", "--json", "keys.json", "--no-html", cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "the default model" in outcome.out
    assert "<|endoftext|> The" in outcome.out
    results = json.loads((tmp_path / "keys.json").read_text())
    assert results["readout"]["data_vars"]["probability"]["data"][-1] > 0.01


def test_a_text_that_is_too_short_names_the_skipped_analyses(models: Path, tmp_path: Path) -> None:
    outcome = run_rheoscope("a", "-m", str(models / "far"), "--full", cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "A text of 8 tokens or more adds: " in outcome.words
    assert "clusters was skipped: this analysis needs at least 3 tokens" in outcome.words
    assert "geometry_kept was skipped" in outcome.words


def test_a_report_is_never_overwritten_silently(models: Path, tmp_path: Path) -> None:
    options = ["-m", str(models / "far"), "--fast"]
    (tmp_path / "report.html").write_text("mine")
    outcome = run_rheoscope("the keys to", "--compare", "the key", *options, "--json", "both.json", cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "wrote report-2.html" in outcome.out
    assert (tmp_path / "report.html").read_text() == "mine"
    assert "2−1" in outcome.out
    results = json.loads((tmp_path / "both.json").read_text())
    assert results["readout"]["attrs"]["text"] == "the keys to"
    assert results["compared"]["readout"]["attrs"]["text"] == "the key"
    again = run_rheoscope("the keys", "--html", "report-2.html", "--space", "sphere", *options, cwd=tmp_path)
    assert "replaced report-2.html" in again.out
    assert "<dd>sphere</dd>" in (tmp_path / "report-2.html").read_text()


def test_a_text_from_a_file_without_a_report(models: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the keys to\n")
    outcome = run_rheoscope("--file", "notes.txt", "--no-html", "--fast", "-m", str(models / "far"), cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "11 tokens: t h e · k e y s · t o" in outcome.out
    assert not list(tmp_path.glob("*.html"))


def test_covers_compare_with_an_untrained_model(models: Path, tmp_path: Path) -> None:
    """Another seed is another control. The trained model gives the same numbers with any control."""
    arguments = ["covers", "-m", str(models / "far"), "the keys to the cabinet", "--draws", "2", "--json", "c.json"]
    results = []
    for options in (("--seed", "0"), ("--seed", "1"), ("--no-untrained",)):
        outcome = run_rheoscope(*arguments, *options, cwd=tmp_path)
        assert outcome.status == 0, outcome.err
        results.append(json.loads((tmp_path / "c.json").read_text())["agreement"]["data_vars"])
        assert ("untrained" in outcome.out) == (options[0] == "--seed")
    first, second, uncontrolled = results
    assert first["agreement"] == second["agreement"] == uncontrolled["agreement"]
    assert first["agreement_untrained"] != second["agreement_untrained"]
    assert "agreement_untrained" not in uncontrolled


def test_covers_in_windows_have_intervals_of_the_control(models: Path, tmp_path: Path) -> None:
    text = "the keys to the cabinet are on the table in the old hall " * 2
    options = ["--draws", "2", "--window", "24", "--json", "c.json"]
    outcome = run_rheoscope("covers", "-m", str(models / "far"), text, *options, cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    result = json.loads((tmp_path / "c.json").read_text())["agreement"]
    assert result["attrs"]["texts"] > 1
    assert {"agreement_untrained", "agreement_untrained_low"} <= set(result["data_vars"])


def test_train_and_generate(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 100)
    (tmp_path / "b.txt").write_text("the mat sat on the cat. " * 20)
    files = ["--data", "a.txt", "b.txt", "--held-out", "b.txt", "--out", "run"]
    arguments = ["train", "tiny", *files, "--device", "cpu", "--set", *SETTINGS]
    outcome = run_rheoscope(*arguments, "--steps", "4", cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert outcome.out.startswith("wrote run (held out: loss ")
    assert outcome.err == ""
    assert json.loads((tmp_path / "run" / "data" / "corpus.json").read_text())["files"] == ["a.txt", "b.txt", "b.txt"]
    generated = run_rheoscope("generate", "the cat", "-m", "run", "--tokens", "9", "--temperature", "0", cwd=tmp_path)
    assert generated.status == 0, generated.err
    assert generated.out.startswith("the cat")
    longer = run_rheoscope(*arguments, "--steps", "5", cwd=tmp_path)
    assert longer.status == 0, longer.err
    other = run_rheoscope(*arguments, "rate=0.5", "--steps", "5", cwd=tmp_path)
    assert other.status == 1
    assert "rate=0.5; use the same recipe or another directory; type --out another_run" in other.err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["train", "--list"], ["shakespeare", "124M"]),
        (["dynamics", "--list"], ["sinkformer"]),
        (["race", "list"], ["qk_norm", "untied", "branches=rezero", "residual_attention", "weight_decay"]),
        (["analyses"], ["geometry_kept", "transport"]),
    ],
)
def test_lists_name_everything(arguments: list[str], names: list[str]) -> None:
    outcome = run_rheoscope(*arguments)
    assert outcome.status == 0, outcome.err
    for name in names:
        assert name in outcome.out


def test_dynamics_prints_numbers_and_writes_files(tmp_path: Path) -> None:
    files = ("--out", "figures", "--json", "bench.json")
    outcome = run_rheoscope("dynamics", "rank_collapse", *files, cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert "expected" in outcome.out
    assert (tmp_path / "figures" / "dynamics-rank_collapse.png").exists()
    assert json.loads((tmp_path / "bench.json").read_text())["rank_collapse"]["attrs"]["seed"] == 0
