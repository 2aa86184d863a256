"""Encoder-decoders on the command line: the story of a pair, and one line for what does not fit."""

from pathlib import Path

import pytest
import transformers as hf

import rheoscope as rs
from tests.commands.cases import run_rheoscope
from tests.pretrained.cases import randomised, saved, tokenizer
from tests.running.test_pair_sides import SOURCE, T5, TARGET, pair

PAIR = ("w5 w6 w7", "--model", "t5", "--no-html")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an encoder-decoder `t5`, a decoder `gpt2`, a model without a softmax `mamba`, and a text."""
    folder = tmp_path_factory.mktemp("pairs")
    randomised(hf.T5ForConditionalGeneration(hf.T5Config(**T5))).save_pretrained(folder / "t5")
    config = hf.MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, state_size=4)
    hf.MambaForCausalLM(config).save_pretrained(folder / "mamba")
    saved("gpt2", folder / "gpt2")
    for name in ("t5", "gpt2", "mamba"):
        tokenizer().save_pretrained(folder / name)
    (folder / "notes.txt").write_text("w5 w6\nw7 w8\n")
    return folder


def test_the_story_of_a_pair_names_both_clouds(place: Path) -> None:
    outcome = run_rheoscope(*PAIR, "--target", "w8 w9 w5 w6 w7 w9 w11", cwd=place)
    assert outcome.status == 0, outcome.err
    assert "source of 4 tokens: <s> w5 w6 w7" in outcome.words
    assert all(title in outcome.words for title in ("Next token", "From source", "Source path", "Movement"))


def test_the_source_of_a_target_may_be_a_file(place: Path) -> None:
    outcome = run_rheoscope(
        "--file", "notes.txt", "--model", "t5", "--target", "w8 w9", "--no-html", "--fast", cwd=place
    )
    assert outcome.status == 0, outcome.err
    assert "source of 5 tokens: <s> w5 w6 w7 w8" in outcome.words


@pytest.mark.parametrize("command", [("analyse", "trajectory"), ("covers", "--draws", "2", "--seed", "1")])
def test_an_analysis_runs_on_either_cloud_of_a_pair(command: tuple[str, ...], place: Path) -> None:
    source, target = "w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16", "w16 w9 w5 w6 w7 w9 w11 w12 w13 w14 w15"
    for tokens, options in ((f"<s> {source}", ()), (f"<pad> <s> {target}", ("--target", target))):
        outcome = run_rheoscope(*command, source, *options, "--model", "t5", cwd=place)
        assert outcome.status == 0, outcome.err
        assert f" tokens: {tokens} " in outcome.words


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (
            ("analyse", "trajectory", "w5 w6", "--model", "gpt2", "--target", "w8"),
            1,
            "has no encoder, so it reads one text; leave out --target",
        ),
        (("covers", "w5 w6", "--model", "t5", "--target", " "), 1, "the target is empty; type --target TEXT"),
        (
            ("analyse", "trajectory", "--image", "a.png", "--target", "w8"),
            2,
            "--image and --target exclude each other",
        ),
        (("w5 w6", "--model", "gpt2", "--target", "w8"), 1, "has no encoder, so it reads one text; leave out --target"),
        ((*PAIR, "--target", ""), 1, "the target is empty; type --target TEXT"),
        ((*PAIR, "--target", "  "), 1, "the target is empty; type --target TEXT"),
        ((*PAIR, "--target", "w5", "w8"), 2, "unexpected extra argument(s) (w8); type rheoscope flow --help"),
        ((*PAIR, "--target", "w5 w6", "--window", "2"), 1, "a window has at least 16 tokens, got 2; type --window 16"),
        (("", "--model", "t5", "--target", "w8"), 1, "the text is empty; type"),
        (("w5 w6", "--model", "mamba"), 1, "MambaForCausalLM has no softmax over tokens, so it has no attention"),
        (("card", "mamba"), 1, "MambaForCausalLM has no softmax over tokens, so it has no attention"),
        (("reverse", "w5 w6", "--model", "t5"), 1, "the encoder of an encoder-decoder has no logits; give it a target"),
        (("--image", "notes.txt", "--model", "t5"), 1, "notes.txt is not an image that Pillow can open"),
    ],
)
def test_what_does_not_fit_a_pair_is_one_line(
    arguments: tuple[str, ...], status: int, message: str, place: Path
) -> None:
    outcome = run_rheoscope(*arguments, cwd=place)
    assert outcome.status == status, outcome.out + outcome.err
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1, outcome.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (["a source", "a target"], "expects a pair \\(source, target\\), got str"),
        ((SOURCE, [TARGET, TARGET]), "token ids"),
        ((SOURCE, []), "the text has no tokens"),
    ],
)
def test_a_list_of_texts_is_no_pair(text: object, message: str) -> None:
    with pytest.raises(rs.RheoscopeError, match=message) as error:
        pair("t5").trace(text)
    assert "\n" not in str(error.value)
