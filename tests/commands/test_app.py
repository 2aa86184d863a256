"""The command as a user types it: exit status, what is printed, what is written, what silly input gets."""

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

from rheoscope.commands.app import main
from tests.processes import run_in_fork

Said = subprocess.CompletedProcess[str]


def typed(*words: str, cwd: Path | None = None) -> Said:
    """The command in a process of its own, as a shell starts it."""
    command = [sys.executable, "-m", "rheoscope", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def rheoscope(*words: str, cwd: Path | None = None) -> Said:
    """The same in this process, which has loaded torch once: its words, its directory, what it prints, how it exits."""
    out, error, status = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "argv", ["rheoscope", *words])
        patch.chdir(cwd or Path.cwd())
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
    return subprocess.CompletedProcess(words, status, out.getvalue(), error.getvalue())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories of small models: one that reads far, one whose weights jump, one broken, two without an unembedding."""
    from transformers import GPT2Config, GPT2Model

    from rheoscope.models.checkpoint import save
    from rheoscope.models.config import Config
    from rheoscope.models.transformer import Transformer
    from rheoscope.models.vocabulary import character_tokenizer
    from tests.pretrained.cases import saved, tokenizer

    root = tmp_path_factory.mktemp("models")
    words = character_tokenizer(["abcdefghijklmnopqrstuvwxyz "], [])
    small = {"vocabulary": 40, "width": 16, "depth": 2, "heads": 2, "hidden": 24, "context": 4096}
    torch.manual_seed(0)
    for name, more in (("far", {}), ("hard", {"mechanism": "hard"}), ("both_ways", {"form": "encoder"})):
        save(Transformer(Config(**small | more)), root / name, tokenizer=words)
    broken = Transformer(Config(**small))
    with torch.no_grad():
        broken.stack.blocks[1].ffn.write.weight[0, 0] = float("nan")
    save(broken, root / "broken", tokenizer=words)
    tokenizer().save_pretrained(saved("bert_bare", root / "bert"))
    GPT2Model(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=40)).save_pretrained(root / "gpt2")
    tokenizer().save_pretrained(root / "gpt2")
    return root


def on(words: list[str], models: Path) -> list[str]:
    """What is typed, with the directory of a model in the place of its name."""
    return [str(models / word) if before == "-m" else word for before, word in zip(["", *words], words, strict=False)]


def test_a_shell_gets_what_the_tests_below_get(models: Path, tmp_path: Path) -> None:
    """The same words printed on the same side, and the same status, in a process of its own and in this one."""
    words = on(["flow", "-m", "far", "the keys to the cabinet", "--no-html", "--fast"], models)
    one, other = typed(*words, cwd=tmp_path), rheoscope(*words, cwd=tmp_path)
    assert one.returncode == other.returncode == 0, one.stderr
    assert (one.stdout, one.stderr) == (other.stdout, other.stderr)


def test_a_shell_gets_the_mistakes_that_the_tests_below_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = run_in_fork(main, "--file", "nowhere.txt"), rheoscope("--file", "nowhere.txt")
    assert one.returncode == other.returncode == 1
    assert (one.stdout, one.stderr) == (other.stdout, other.stderr)
    assert one.stderr.count("\n") == 1


def test_version() -> None:
    assert rheoscope("--version").stdout.startswith("rheoscope ")


def test_attention_prints_writes_and_keeps_every_number(tmp_path: Path) -> None:
    done = rheoscope("attention", "--json", "laws.json", "--explain", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "metric" in done.stdout
    assert "sdpa" in done.stdout
    assert (tmp_path / "rheoscope-attention.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "rheoscope-attention.html").read_text()
    assert "data:image/png;base64" in page
    assert "http" not in page
    told = json.loads((tmp_path / "laws.json").read_text())
    assert told["metric"]["laws"]["dot_form"]["violation"] <= told["metric"]["laws"]["dot_form"]["tolerance"]
    assert "not sdpa" in done.stdout


def test_operators_of_a_directory(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9, n_positions=16)).save_pretrained(
        tmp_path / "model"
    )
    done = rheoscope(
        "operators", "-m", "model", "--json", "heads.json", "--html", "heads.html", "--explain", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "exact on 8 tokens" in done.stdout
    told = json.loads((tmp_path / "heads.json").read_text())["operators"]
    assert told["dims"]["layer"] == 2
    assert len(told["data_vars"]["symmetry"]["data"][0]) == 2
    assert "<svg" in (tmp_path / "heads.html").read_text()


def test_operators_say_what_scores_are_made_of_on_a_text(tmp_path: Path) -> None:
    from rheoscope.opening import DEFAULT_MODEL

    done = rheoscope("operators", "-m", str(DEFAULT_MODEL), "--text", "The keys", "--json", "heads.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "shares of what softmax sees" in " ".join(done.stdout.split())
    assert {"operators", "scores"} <= set(json.loads((tmp_path / "heads.json").read_text()))


def test_operators_are_those_of_the_default_model_where_nobody_says(tmp_path: Path) -> None:
    done = rheoscope("operators", "--csv", "tables", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the default model" in done.stdout
    assert "Range over heads" in done.stdout
    assert (tmp_path / "tables" / "operators.layer_head.csv").read_text().startswith("layer,head,symmetry")


def test_a_text_goes_through_the_default_model(tmp_path: Path) -> None:
    done = rheoscope("The keys to the cabinet are", "--json", "keys.json", "--explain", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in (
        "the default model",
        "<|endoftext|> The",
        "likeliest next tokens",
        "straight",
        "symmetry",
        "wrote keys.json",
        "wrote report.html",
    ):
        assert said in done.stdout
    told = json.loads((tmp_path / "keys.json").read_text())
    flow = {
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
    covers = {
        "agreement",
        "distorted_pairs",
        "score_attribution",
        "scores",
        "head_statistics",
        "head_types",
        "operators",
        "distortion",
        "fixed_point",
    }
    assert set(told) == flow | covers | {"findings", "verdicts", "written_by"}
    assert told["findings"]["attrs"]["tested"] > 5
    assert told["readout"]["data_vars"]["probability"]["data"][-1] > 0.01


def test_a_text_too_short_to_move_says_what_is_left_out(models: Path, tmp_path: Path) -> None:
    done = rheoscope("a", "-m", str(models / "far"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "clusters was skipped: this analysis needs at least 3 tokens" in said
    assert "geometry_kept was skipped" in said


def test_a_report_is_never_overwritten_in_silence(models: Path, tmp_path: Path) -> None:
    far = ["-m", str(models / "far"), "--fast"]
    (tmp_path / "report.html").write_text("mine")
    done = rheoscope("the keys to", "--compare", "the key", *far, "--json", "both.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "wrote report-2.html" in done.stdout
    assert (tmp_path / "report.html").read_text() == "mine"
    assert "2−1" in done.stdout
    told = json.loads((tmp_path / "both.json").read_text())
    assert told["readout"]["attrs"]["text"] == "the keys to"
    assert told["compared"]["readout"]["attrs"]["text"] == "the key"
    again = rheoscope("the keys", "--html", "report-2.html", "--space", "sphere", *far, cwd=tmp_path)
    assert "replaced report-2.html" in again.stdout
    assert "<dd>sphere</dd>" in (tmp_path / "report-2.html").read_text()


def test_a_text_from_a_file_and_no_report(models: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the keys to\n")
    done = rheoscope("--file", "notes.txt", "--no-html", "--fast", "-m", str(models / "far"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "11 tokens: t h e · k e y s · t o" in done.stdout
    assert not list(tmp_path.glob("*.html"))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["The keys"], ["flow", "The keys"]),
        (["-m", "gpt2", "The keys"], ["flow", "-m", "gpt2", "The keys"]),
        (["-"], ["flow", "-"]),
        (["--", "attention"], ["flow", "--", "attention"]),
        (["attention", "--explain"], ["attention", "--explain"]),
        (["operatros"], ["operatros"]),
        (["--help"], ["--help"]),
        ([], []),
    ],
)
def test_a_first_word_that_is_no_command_is_a_text(typed: list[str], meant: list[str]) -> None:
    from rheoscope.commands.app import insert_default_command

    assert insert_default_command(typed) == meant


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["operators", "-m", "./nowhere"], 1, "there is no directory ./nowhere"),
        (["operators", "-m", "."], 1, "holds no config.json"),
        (["dynamics", "rank_collapse", "--out", "file.txt/below"], 1, "cannot write"),
        (["train", "huge", "--data", "file.txt", "--out", "run"], 1, "unknown recipe 'huge'; type one of tiny"),
        (["train", "tiny", "--data", "file.txt", "--out", "run"], 1, "file.txt is empty, expected text"),
        (["train", "tiny", "--data", "file.txt"], 2, "type rheoscope train RECIPE"),
        (["train", "tiny", "--out", "run"], 1, "recipe tiny learns from files, got none; type --data FILE…"),
        (
            ["train", "digits", "--data", "file.txt", "--out", "run"],
            1,
            "recipe digits makes its own data, got file.txt",
        ),
        (["race", "tiny", "--mechanisms", "tied", "--out", "run"], 1, "recipe tiny learns from files, got none"),
        (["generate", "-m", "nowhere", "a"], 1, "there is no directory nowhere"),
        (["operatros"], 2, "No such command"),
        (["dynamics", "heet"], 1, "unknown experiment 'heet'; type one of heat"),
        (["dynamics"], 2, "--list for the"),
        (["flow", "two words", "--model", "./nowhere"], 1, "there is no directory ./nowhere"),
        (["--file", "nowhere.txt"], 1, "there is no file nowhere.txt"),
        (["--file", "file.txt"], 1, "file.txt is empty, expected text"),
        (["--file", "binary"], 1, "binary is not text in UTF-8"),
        (["--file", "."], 1, "cannot read .: Is a directory"),
        (["flow"], 1, "expected a text or --file, got none of them"),
        (["flow", "a text", "--file", "file.txt"], 1, "expected a text or --file, got both of them"),
        (["flow", "a text", "--space", "moon"], 1, "unknown space 'moon'; type one of raw, normed, sphere"),
        (["flow", "a text", "--html", "a.html", "--no-html"], 1, "exclude each other"),
        (["covers", "a text", "--no-untrained"], 1, "type a longer text"),
        (["covers", "a text", "--seed", "-1"], 2, "greater than or equal to 0"),
        (["surgery", "a text"], 1, "nothing to change; type --M symmetric or --F symmetric"),
        (["surgery", "a text", "--M", "square"], 1, "unknown replacement of M: 'square'; type one of identity"),
        (["surgery", "a text", "--M", "symmetric", "--heads", "9.9"], 1, "there is no layer 9"),
        (["reverse", "a text", "--target", " cabinet"], 1, "the target must be one token"),
        (["analyse", "massive_tokens", "a text", "--html", "."], 1, "is a directory, expected a file name"),
        (
            ["flow", "a text", "--json", "a", "--csv", "b", "--html", "./b"],
            1,
            "two outputs have the name b; choose a different name",
        ),
        (["analyse", "nowhere", "a text"], 1, "there is no analysis 'nowhere'; expected one of frames"),
        (["analyse", "transport"], 1, "expected a text or --file, got none of them"),
        (["analyse", "transport", "a text", "--file", "file.txt"], 1, "expected a text or --file, got both of them"),
        (["analyse", "transport", "a text", "--nope", "3"], 2, "No such option: --nope"),
        (["analyse", "transport", "a text", "--draws", "many"], 2, "Invalid value for '--draws'"),
        (["analyse", "transport", "a text", "--strides", "1,two"], 1, "--strides expects numbers separated by commas"),
        (
            ["analyse", "transport", "a text", "--space", "moon"],
            1,
            "space must be one of raw, normed, sphere, got 'moon'",
        ),
        (["analyse", "fixed_point", "a text", "--layers", "9"], 1, "there is no layer 9"),
        (["analyse", "surgery", "a text", "--heads", "5"], 1, "expected heads as layer.head, got '5'"),
        (["analyse", "operators", "a text"], 2, "unexpected extra argument"),
        (["analyse", "operators", "--file", "file.txt"], 2, "No such option: --file"),
        (["analyse", "clusters", "a"], 1, "this analysis needs at least 3 tokens"),
        (["analyse", "transport", "a text", "--model", "./nowhere"], 1, "there is no directory ./nowhere"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], status: int, says: str, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    done = rheoscope(*words, cwd=tmp_path)
    assert done.returncode == status
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    if status == 1:
        assert len(done.stderr.strip().splitlines()) == 1


# What the flow and the covers cannot do, in models that are made for it


def test_covers_stand_beside_an_untrained_model(models: Path, tmp_path: Path) -> None:
    """Another seed is another control, none is none; the model itself stays as it is."""
    covers = [
        "covers",
        "-m",
        str(models / "far"),
        "the keys to the cabinet",
        "--draws",
        "2",
    ]
    told = []
    for words in (("--seed", "0"), ("--seed", "1"), ("--no-untrained",)):
        done = rheoscope(*covers, "--json", "c.json", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        told.append(json.loads((tmp_path / "c.json").read_text())["agreement"])
        assert ("untrained" in done.stdout) == (words[0] == "--seed")
    one, other, none = (one["data_vars"] for one in told)
    assert one["agreement"] == other["agreement"] == none["agreement"]
    assert one["agreement_untrained"] != other["agreement_untrained"]
    assert "agreement_untrained" not in none
    covers[3] = "the keys to the cabinet are on the table in the old hall " * 3
    done = rheoscope(*covers, "--window", "24", "--json", "c.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    pieces = json.loads((tmp_path / "c.json").read_text())["agreement"]
    assert pieces["attrs"]["texts"] > 1
    assert {"agreement_untrained", "agreement_untrained_low"} <= set(pieces["data_vars"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["reverse", "The keys", "--target", " cabinet"],
            "the target must be one token, ' cabinet' is 3 (' c' 'ab' 'inet'); type another word",
        ),
        (["reverse", "The keys", "--target", ""], "the target must be one token, '' is 0 (none); type another word"),
        (["reverse", "The keys", "--token", "99"], "there is no token 99; this text has tokens 0 to "),
        (
            ["reverse", "-m", "hard", "the keys to the"],
            "the weights of layer 0 jump, so its scores have no gradient; type rheoscope analyse surgery",
        ),
        (
            ["reverse", "-m", "gpt2", "w5 w6 w7"],
            "GPT2Model has no unembedding, so there are no logits; type the name of a language model",
        ),
        (
            ["reverse", "-m", "bert", "w5 w6 w7"],
            "BertModel has no unembedding, so there are no logits; type the name of a language model",
        ),
        (
            ["surgery", "The keys", "--M", "symmetric", "--heads", "0.99"],
            "there is no head 99 in layer 0; it has heads 0 to 3",
        ),
        (["surgery", "The keys", "--M", "symmetric", "--heads", "L99"], "there is no layer 99"),
        (["surgery", "The keys", "--M", "symmetric", "--heads", "5"], "expected heads as layer.head, got '5'"),
        (
            ["surgery", "The keys", "--M", "symmetric", "--heads", "one"],
            "expected heads as layer.head, got 'one'; type --heads 5.1",
        ),
        (
            ["surgery", "-m", "both_ways", "the keys", "--M", "symmetric"],
            "this model reads both ways, so it predicts no next token",
        ),
        (
            ["surgery", "-m", "bert", "w5 w6 w7", "--M", "symmetric"],
            "this model reads both ways, so it predicts no next token",
        ),
        (
            ["surgery", "-m", "gpt2", "w5 w6 w7", "--M", "symmetric"],
            "this model has no unembedding, so it has no loss; in Python type rs.trace_under",
        ),
        (["surgery", "-m", "far", "t", "--M", "symmetric"], "a loss needs at least 2 tokens; type a longer text"),
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
def test_what_cannot_be_done_is_one_line(words: list[str], says: str, models: Path, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("the keys to the cabinet " * 200)
    done = rheoscope(*on(words, models), cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "\n\n" not in done.stdout  # at most the model and the text, no table


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["flow", "-m", "far", "a a a a a a a a", "--no-html"], "likeliest next tokens"),
        (["flow", "-m", "far", "t", "--no-html"], "was skipped: this analysis needs at least 3 tokens"),
        (["flow", "-m", "bert", "w5 w6 w7 w9 w5 w8", "--no-html"], "readout was skipped: "),
        (["flow", "-m", "hard", "the keys to the cabinet", "--no-html"], "straight"),
        (
            ["covers", "-m", "far", "a a a a a a a a a a a a a a a a", "--draws", "2"],
            "heads attend to similar tokens more than random heads",
        ),
        (
            ["covers", "-m", "hard", "the keys to the cabinet", "--draws", "2"],
            "heads attend to similar tokens more than random heads",
        ),
        (["flow", "-m", "far", "the keys to the cabinet", "--fast"], "nulls are left out (--fast)"),
        (
            ["covers", "-m", "far", "the keys to the cabinet", "--fast", "--html", "c.html"],
            "nulls are left out (--fast)",
        ),
        (["reverse", "The keys to the", "--token", "2"], "Heads with the largest gradient"),
        (
            ["surgery", "The keys to the cabinet are", "--M", "symmetric", "--heads", "L5", "--each"],
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
def test_what_is_odd_has_a_defined_answer(words: list[str], says: str, models: Path, tmp_path: Path) -> None:
    """Equal tokens, one token, no unembedding, weights that jump."""
    done = rheoscope(*on(words, models), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert says in " ".join(done.stdout.split())
    assert done.stderr == ""


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.argv = ['rheoscope', '--help']\nimport rheoscope.commands.app as c\ntry: c.main()\nexcept SystemExit: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "assert 'torch' not in sys.modules"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


SMALL = ["width=16", "depth=1", "heads=2", "batch=4", "context=16", "evaluate_every=2", "vocabulary=characters"]


def test_train_and_generate(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 100)
    (tmp_path / "b.txt").write_text("the mat sat on the cat. " * 20)
    words = ["train", "tiny", "--data", "a.txt", "b.txt", "--held-out", "b.txt", "--out", "run", "--set", *SMALL]
    done = rheoscope(*words, "--steps", "4", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("wrote run (held out: loss ")
    assert done.stderr == ""
    assert json.loads((tmp_path / "run" / "data" / "corpus.json").read_text())["files"] == ["a.txt", "b.txt", "b.txt"]
    made = rheoscope("generate", "the cat", "-m", "run", "--tokens", "9", "--temperature", "0", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("the cat")
    longer = rheoscope(*words, "--steps", "5", "--device", "cpu", cwd=tmp_path)
    assert longer.returncode == 0, longer.stderr
    other = rheoscope(*words, "rate=0.5", "--steps", "5", "--device", "cpu", cwd=tmp_path)
    assert other.returncode == 1
    assert "rate=0.5; type the same recipe, or another --out" in other.stderr


def test_recipes_are_listed() -> None:
    done = rheoscope("train", "--list")
    assert done.returncode == 0, done.stderr
    assert "shakespeare" in done.stdout
    assert "124M" in done.stdout


def test_dynamics_prints_numbers_and_writes_what_is_asked(tmp_path: Path) -> None:
    done = rheoscope("dynamics", "rank_collapse", "--out", "figures", "--json", "bench.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "expected" in done.stdout
    assert (tmp_path / "figures" / "dynamics-rank_collapse.png").exists()
    assert json.loads((tmp_path / "bench.json").read_text())["rank_collapse"]["attrs"]["seed"] == 0
    listed = rheoscope("dynamics", "--list")
    assert listed.returncode == 0, listed.stderr
    assert "sinkformer" in listed.stdout
