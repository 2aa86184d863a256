"""Errors on the command line: one line that names the problem and what to type."""

from pathlib import Path

import pytest

from tests.commands.cases import run_rheoscope


def with_model_paths(arguments: list[str], models: Path) -> list[str]:
    """The arguments, with the directory of a model in place of its name."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [str(models / argument) if previous == "-m" else argument for previous, argument in pairs]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["operators", "-m", "./nowhere"], 1, "there is no directory ./nowhere"),
        (["operators", "-m", "."], 1, "contains no config.json"),
        (["dynamics", "rank_collapse", "--out", "file.txt/below"], 1, "cannot write"),
        (["train", "huge", "--data", "file.txt", "--out", "run"], 1, "unknown recipe 'huge'; the recipes are tiny"),
        (["train", "tiny", "--data", "file.txt", "--out", "run"], 1, "file.txt is empty, expected text"),
        (["train", "tiny", "--data", "file.txt"], 2, "training needs a recipe and --out; type rheoscope train RECIPE"),
        (
            ["race", "run", "--out", "run"],
            2,
            "a race needs a recipe and --mechanisms or --entrant, or --job; type rheoscope race run",
        ),
        (["race", "run", "tiny", "--mechanisms", "tied"], 2, "Missing option '--out'; type rheoscope race run --help"),
        (["race", "run", "tiny", "--mechanisms", "tied", "--rates", "x", "--out", "run"], 2, "type --rates 1e-3,3e-3"),
        (["bench", "nothing"], 2, "there is no benchmark 'nothing'; type rheoscope bench attention"),
        (["train", "tiny", "--out", "run"], 1, "recipe tiny learns from files, got none; type --data FILE…"),
        (
            ["train", "digits", "--data", "file.txt", "--out", "run"],
            1,
            "recipe digits generates its own data, got the file file.txt",
        ),
        (["race", "run", "tiny", "--mechanisms", "tied", "--out", "run"], 1, "recipe tiny learns from files, got none"),
        (["generate", "-m", "./nowhere", "a"], 1, "there is no directory ./nowhere"),
        (["dynamics", "heet"], 1, "unknown experiment 'heet', expected one of heat; type rheoscope dynamics heat"),
        (["dynamics"], 2, "got no experiment; type rheoscope dynamics --list"),
        (["flow", "two words", "--model", "./nowhere"], 1, "there is no directory ./nowhere"),
        (["--file", "nowhere.txt"], 1, "there is no file nowhere.txt"),
        (["--file", "file.txt"], 1, "file.txt is empty, expected text"),
        (["--file", "binary"], 1, "binary is not UTF-8 text; type --file notes.txt"),
        (["--file", "."], 1, "cannot read .: Is a directory"),
        (["flow"], 1, 'got no text; type rheoscope "The keys to the cabinet are", or rheoscope --file notes.txt'),
        (["flow", "a text", "--file", "file.txt"], 1, "got a text and --file"),
        (
            ["flow", "a text", "--space", "moon"],
            1,
            "space must be one of raw, normed, sphere, got 'moon'; type --space raw",
        ),
        (
            ["flow", "a text", "--html", "a.html", "--no-html"],
            2,
            "--html and --no-html exclude each other; type --html",
        ),
        (["covers", "a text", "--no-untrained"], 1, "use a longer text"),
        (["covers", "a text", "--seed", "-1"], 2, "greater than or equal to 0"),
        (["surgery", "a text"], 1, "nothing to replace; type --M symmetric or --F symmetric"),
        (["surgery", "a text", "--M", "square"], 1, "unknown replacement of M: 'square', expected one of identity"),
        (["surgery", "a text", "--M", "symmetric", "--heads", "9.9"], 1, "there is no layer 9"),
        (["reverse", "a text", "--target", " cabinet"], 1, "the target must be one token"),
        (
            ["analyse", "massive_tokens", "a text", "--html", "."],
            1,
            ". is a directory, expected a file name; type report.html",
        ),
        (
            ["flow", "a text", "--json", "a", "--csv", "b", "--html", "./b"],
            1,
            "two outputs have the name b; type b-2",
        ),
        (["analyse", "nowhere", "a text"], 1, "there is no analysis 'nowhere'; type rheoscope analyses"),
        (["analyse", "transport"], 1, "got no text; type "),
        (["analyse", "transport", "a text", "--file", "file.txt"], 1, "got a text and --file"),
        (["analyse", "transport", "a text", "--nope", "3"], 2, "No such option: --nope"),
        (
            ["analyse", "transport", "a text", "--draws", "many"],
            2,
            "--draws takes a whole number, got 'many'; type --draws 1",
        ),
        (
            ["analyse", "transport", "a text", "--strides", "1,two"],
            1,
            "--strides takes numbers separated by commas, got '1,two'; type --strides 1,4",
        ),
        (
            ["analyse", "transport", "a text", "--space", "moon"],
            1,
            "space must be one of raw, normed, sphere, got 'moon'; type --space raw",
        ),
        (["analyse", "fixed_point", "a text", "--layers", "9"], 1, "there is no layer 9"),
        (
            ["analyse", "surgery", "a text", "--heads", "5"],
            1,
            "a head is typed as layer.head, got '5'; type --heads 5.1",
        ),
        (["analyse", "operators", "a text"], 2, "unexpected extra argument"),
        (["analyse", "operators", "--file", "file.txt"], 2, "No such option: --file"),
        (["analyse", "clusters", "a"], 1, "this analysis needs at least 3 tokens"),
        (["analyse", "transport", "a text", "--model", "./nowhere"], 1, "there is no directory ./nowhere"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], status: int, message: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    outcome = run_rheoscope(*arguments, cwd=tmp_path)
    assert outcome.status == status
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["reverse", "The keys", "--target", " cabinet"],
            "the target must be one token, ' cabinet' is 3 (' c' 'ab' 'inet'); use another word or a token id; type --target '#262'",
        ),
        (
            ["reverse", "The keys", "--target", ""],
            "the target must be one token, '' is 0 (none); use another word or a token id; type --target '#262'",
        ),
        (["reverse", "The keys", "--token", "99"], "there is no token 99; this text has tokens 0 to "),
        (
            ["reverse", "-m", "hard", "the keys to the"],
            "so they have no gradient; type rheoscope analyse surgery",
        ),
        (
            ["reverse", "-m", "gpt2", "w5 w6 w7"],
            "GPT2Model has no unembedding and therefore no logits; choose a language model",
        ),
        (
            ["reverse", "-m", "bert", "w5 w6 w7"],
            "BertModel has no unembedding and therefore no logits; choose a language model",
        ),
        (
            ["surgery", "The keys", "--M", "symmetric", "--heads", "0.99"],
            "there is no head 99 in layer 0; it has heads 0 to 3",
        ),
        (["surgery", "The keys", "--M", "symmetric", "--heads", "L99"], "there is no layer 99"),
        (
            ["surgery", "The keys", "--M", "symmetric", "--heads", "5"],
            "a head is typed as layer.head, got '5'; type --heads 5.1",
        ),
        (
            ["surgery", "The keys", "--M", "symmetric", "--heads", "one"],
            "a head is typed as layer.head, got 'one'; type --heads 5.1",
        ),
        (
            ["surgery", "-m", "both_ways", "the keys", "--M", "symmetric"],
            "this model is bidirectional, so it predicts no next token",
        ),
        (
            ["surgery", "-m", "bert", "w5 w6 w7", "--M", "symmetric"],
            "this model is bidirectional, so it predicts no next token",
        ),
        (
            ["surgery", "-m", "gpt2", "w5 w6 w7", "--M", "symmetric"],
            "this model has no unembedding, so it has no loss; in Python type rs.trace_under",
        ),
        (["surgery", "-m", "far", "t", "--M", "symmetric"], "a loss needs at least 2 tokens; use a longer text"),
        (["covers", "The keys to the"], "agreement needs a query with at least 8 other keys that are not massive"),
        (["covers", "-m", "far", ""], "the text is empty; type"),
        (["covers", "-m", "broken", "the keys"], "holds NaN or infinity; download the checkpoint again"),
        (["flow", "-m", "broken", "the keys"], "holds NaN or infinity; download the checkpoint again"),
        (["flow", "-m", "far", ""], "the text is empty; type"),
        (
            ["flow", "-m", "far", "--file", "book.txt"],
            "the text has 4,800 tokens, the model reads at most 4,096; type --first 4096, or --window 512 to analyse all of it",
        ),
        (
            ["analyse", "agreement", "the keys to the cabinet are on the table", "-m", "far", "--draws", "99999999"],
            "draws must lie between 0 and 10,000, got 99999999; type --draws 10000",
        ),
    ],
)
def test_an_impossible_request_is_one_line(arguments: list[str], message: str, models: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the keys to the cabinet " * 200)
    outcome = run_rheoscope(*with_model_paths(arguments, models), cwd=tmp_path)
    assert outcome.status == 1, outcome.out + outcome.err
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert "\n\n" not in outcome.out  # at most the model and the text, no table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["flow", "-m", "far", "a a a a a a a a", "--no-html"], "Next token"),
        (["flow", "-m", "far", "t", "--no-html"], "A text of 8 tokens or more adds"),
        (["flow", "-m", "bert", "w5 w6 w7 w9 w5 w8", "--no-html"], "Movement"),
        (["flow", "-m", "hard", "the keys to the cabinet", "--no-html"], "straight"),
        (
            ["covers", "-m", "far", "a a a a a a a a a a a a a a a a", "--draws", "2"],
            "none is significant",
        ),
        (
            ["covers", "-m", "hard", "the keys to the cabinet", "--draws", "2"],
            "none is significant",
        ),
        (["flow", "-m", "far", "the keys to the cabinet", "--fast"], "null distributions were not drawn (--fast)"),
        (
            ["covers", "-m", "far", "the keys to the cabinet", "--fast", "--html", "c.html"],
            "null distributions were not drawn (--fast)",
        ),
        (["reverse", "The keys to the", "--token", "2"], "largest gradient"),
        (
            ["surgery", "The keys to the cabinet are", "--M", "symmetric", "--heads", "L5", "--per-head"],
            "in each head alone",
        ),
        (["surgery", "The keys to the cabinet are", "--F", "rank 2", "--heads", "L5"], "in L5.H0 L5.H1 L5.H2 L5.H3"),
        (["costs", "--tokens", "64"], "twice that if causal"),
        (["analyse", "composition", "--top", "2"], "composition"),
        (["analyse"], "rheoscope analyse NAME"),
        (["analyse", "--help"], "rheoscope analyse NAME"),
        (["analyses"], "geometry_kept"),
    ],
)
def test_an_unusual_request_has_a_result(arguments: list[str], message: str, models: Path, tmp_path: Path) -> None:
    """Equal tokens, one token, no unembedding, weights that jump."""
    outcome = run_rheoscope(*with_model_paths(arguments, models), cwd=tmp_path)
    assert outcome.status == 0, outcome.err
    assert message in outcome.words
    assert outcome.err == ""
