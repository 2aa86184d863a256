"""`rheoscope generate`: chunks of complete characters, translations, and refused models."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rheoscope.models.checkpoint import save
from rheoscope.models.config import Config
from rheoscope.models.transformer import build
from rheoscope.models.vocabulary import SPECIALS, decode, encode, train_bpe
from rheoscope.report.generation import decode_stream, generate_text
from rheoscope.shapes import RheoscopeError
from tests.texts import any_text

TOKENIZER = train_bpe(["the cat sat on the mat"] * 5, 270, ["<|endoftext|>"])


def model(folder: Path, **more: object) -> Path:
    torch.manual_seed(0)
    config = Config(vocabulary=270, width=16, depth=1, heads=2, context=32)
    return save(build(config.with_changes(**more)), folder, TOKENIZER)


@given(any_text(max_size=20))
def test_chunks_join_to_the_text(text: str) -> None:
    assert "".join(decode_stream(TOKENIZER, encode(TOKENIZER, text))) == text


@given(st.lists(st.integers(1, 256), max_size=30))
def test_chunks_of_any_bytes_are_complete_characters(ids: list[int]) -> None:
    """Invalid byte sequences are replaced, and no valid character is split."""
    chunks = list(decode_stream(TOKENIZER, ids))
    assert all(not piece.endswith("\N{REPLACEMENT CHARACTER}") for piece in chunks[:-1])
    assert "".join(chunks).replace("\N{REPLACEMENT CHARACTER}", "") == decode(TOKENIZER, ids).replace(
        "\N{REPLACEMENT CHARACTER}", ""
    )


def test_the_default_model_generates_reproducibly(capsys: pytest.CaptureFixture[str]) -> None:
    generate_text("The history of", max_tokens=8)
    output = capsys.readouterr().out
    assert output.startswith("The history of ")
    generate_text("The history of", max_tokens=8)
    assert capsys.readouterr().out == output
    generate_text("The history of", max_tokens=8, seed=1)
    assert capsys.readouterr().out != output


def test_generation_stops_at_the_context_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate_text("the cat", model(tmp_path), max_tokens=1000, temperature=0.0)
    assert capsys.readouterr().out.startswith("the cat")
    with pytest.raises(RheoscopeError, match="exceed the context of 32 tokens"):
        generate_text("the cat " * 40, tmp_path)
    assert capsys.readouterr().out == ""


def test_a_translator_translates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    tokenizer = train_bpe(["a dog"], 270, SPECIALS)
    config = Config(vocabulary=270, width=16, depth=1, heads=2, context=32, form="encoder-decoder")
    save(build(config), tmp_path, tokenizer)
    generate_text("a dog", tmp_path)
    assert capsys.readouterr().out.endswith("\n")
    with pytest.raises(
        RheoscopeError, match=r"the sentence has .* tokens, the model reads at most 32; .*type a shorter sentence"
    ):
        generate_text("a dog " * 40, tmp_path)


def test_models_of_transformers_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Greedy tokens are those of `generate` of transformers, up to the token that ends the text."""
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=270, n_positions=32, tie_word_embeddings=False)
    network = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(10)
    network.generation_config.eos_token_id = 0
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER, eos_token="<|endoftext|>")
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    generate_text("the cat", tmp_path, max_tokens=12, temperature=0.0)
    ids = tokenizer("the cat", return_tensors="pt")["input_ids"]
    expected = network.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0)[0]
    assert len(expected.unique()) > 4
    assert capsys.readouterr().out == tokenizer.decode(expected, skip_special_tokens=True) + "\n"
    generate_text("the cat", tmp_path, max_tokens=1000, temperature=0.0)
    assert capsys.readouterr().out.startswith("the cat")
    with pytest.raises(RheoscopeError, match="32"):
        generate_text("the cat " * 40, tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RheoscopeError, match=r"config.json"):
        generate_text("a", tmp_path)


def test_invalid_settings_and_files_are_refused(tmp_path: Path) -> None:
    model(tmp_path)
    with pytest.raises(RheoscopeError, match="temperature must be finite and at least 0"):
        generate_text("a", tmp_path, temperature=-1.0)
    with pytest.raises(RheoscopeError, match="top_p must be above 0 and at most 1"):
        generate_text("a", tmp_path, top_p=2.0)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(
        RheoscopeError, match=r"has no tokenizer.json; choose a directory that rheoscope train wrote.*type --model DIR"
    ):
        generate_text("a", tmp_path)
