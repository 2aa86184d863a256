"""`rheoscope generate`: text in pieces that are whole characters, translations, and models of others."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rheoscope.models.checkpoint import save
from rheoscope.models.config import Config
from rheoscope.models.sentence_pairs import SPECIALS
from rheoscope.models.transformer import build
from rheoscope.models.vocabulary import byte_pairs, decode, encode
from rheoscope.report.generation import pieces, show
from rheoscope.shapes import RheoscopeError
from tests.texts import any_text

TOKENIZER = byte_pairs(["the cat sat on the mat"] * 5, 270, ["<|endoftext|>"])


def model(folder: Path, **more: object) -> Path:
    torch.manual_seed(0)
    config = Config(vocabulary=270, width=16, depth=1, heads=2, context=32)
    return save(build(config.but(**more)), folder, TOKENIZER)


@given(any_text(max_size=20))
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces(TOKENIZER, encode(TOKENIZER, text))) == text


@given(st.lists(st.integers(1, 256), max_size=30))
def test_pieces_of_any_bytes(ids: list[int]) -> None:
    """Broken sequences come out as somebody must, but never cut in two what is whole."""
    made = list(pieces(TOKENIZER, ids))
    assert all(not piece.endswith("\N{REPLACEMENT CHARACTER}") for piece in made[:-1])
    assert "".join(made).replace("\N{REPLACEMENT CHARACTER}", "") == decode(TOKENIZER, ids).replace(
        "\N{REPLACEMENT CHARACTER}", ""
    )


def test_the_default_model_writes(capsys: pytest.CaptureFixture[str]) -> None:
    show("The history of", tokens=8)
    said = capsys.readouterr().out
    assert said.startswith("The history of ")
    show("The history of", tokens=8)
    assert capsys.readouterr().out == said
    show("The history of", tokens=8, seed=1)
    assert capsys.readouterr().out != said


def test_no_more_tokens_than_there_is_room_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show("the cat", model(tmp_path), tokens=1000, temperature=0.0)
    assert capsys.readouterr().out.startswith("the cat")
    with pytest.raises(RheoscopeError, match="longer than the 32 that the model reads"):
        show("the cat " * 40, tmp_path)
    assert capsys.readouterr().out == ""


def test_a_translator_translates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    tokenizer = byte_pairs(["a dog"], 270, SPECIALS)
    config = Config(vocabulary=270, width=16, depth=1, heads=2, context=32, form="encoder-decoder")
    save(build(config), tmp_path, tokenizer)
    show("a dog", tmp_path)
    assert capsys.readouterr().out.endswith("\n")
    with pytest.raises(RheoscopeError, match=r"the sentence has .* tokens, the model reads 32; type a shorter one"):
        show("a dog " * 40, tmp_path)


def test_models_of_others(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(RheoscopeError, match=r"is a model of transformers \(gpt2\); type AutoModelForCausalLM"):
        show("a", tmp_path)
    with pytest.raises(RheoscopeError, match="there is no directory gpt2; type one that rheoscope train made"):
        show("a", Path("gpt2"))
    with pytest.raises(RheoscopeError, match=r"holds no config.json"):
        show("a", tmp_path.parent)


def test_settings_and_files_that_are_wrong(tmp_path: Path) -> None:
    model(tmp_path)
    with pytest.raises(RheoscopeError, match="temperature is a finite number of 0 or more"):
        show("a", tmp_path, temperature=-1.0)
    with pytest.raises(RheoscopeError, match="top_p is a probability"):
        show("a", tmp_path, top_p=2.0)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(RheoscopeError, match=r"holds no tokenizer.json; type a directory that rheoscope train made"):
        show("a", tmp_path)
