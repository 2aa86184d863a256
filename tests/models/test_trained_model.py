"""Our own models called on texts: strings, ids, batches, and invalid inputs."""

import sys
from pathlib import Path

import pytest
import torch

import rheoscope as rs
from rheoscope.models.trained_model import NativeTransformer
from rheoscope.models.vocabulary import character_tokenizer
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks
from tests.models.cases import UNMASKED, model, network, saved
from tests.pretrained.cases import text
from tests.processes import run_in_fork, unload_packages


def with_tokenizer() -> NativeTransformer:
    tokenizer = character_tokenizer(["abcdefgh ijkl"], ["<|endoftext|>"])
    loaded = rs.load(network("own"), tokenizer=tokenizer)
    assert isinstance(loaded, NativeTransformer)
    return loaded


def test_a_string_is_tokenised() -> None:
    trace = with_tokenizer().trace("bad gag", logits=True)
    assert trace.tokens == list("bad gag")
    assert trace.text == "bad gag"
    assert torch.equal(trace.logits, with_tokenizer().run(trace.ids))
    assert with_tokenizer().token_strings(torch.tensor([0, 2])) == ["<|endoftext|>", "a"]
    assert [len(batch_trace) for batch_trace in with_tokenizer().trace(["bad", "gag lid"])] == [3, 7]


def test_a_text_that_the_tokenizer_cannot_encode_is_refused() -> None:
    with (
        without_jaxtyping_checks(),
        pytest.raises(RheoscopeError, match=r"the tokenizer cannot encode this text .*; use only characters"),
    ):
        with_tokenizer().trace("ähem")
    with pytest.raises(RheoscopeError, match=r"this model has no tokenizer, expected a tokenizer\.json"):
        model("own").trace("bad")


def test_a_tokenizer_of_transformers_is_accepted() -> None:
    from tests.pretrained.cases import tokenizer

    assert rs.load(network("own"), tokenizer=tokenizer()).ids("w7 w8").tolist() == [1, 7, 8]


def test_a_text_longer_than_the_context_is_refused() -> None:
    with pytest.raises(
        RheoscopeError, match="the text has 65 tokens, but the model reads at most 64; use a shorter text"
    ):
        model("own").trace(text(n=65))


@pytest.mark.parametrize("name", sorted(UNMASKED))
def test_texts_of_several_lengths_need_a_mechanism_with_masks(name: str) -> None:
    assert len(model(name).trace([text(1), text(2)])) == 2
    with pytest.raises(RheoscopeError, match="does not support masks"):
        model(name).trace([text(1), text(2, 5)])


def without_transformers(directory: Path) -> None:
    unload_packages("transformers")
    import rheoscope as rs
    import rheoscope.pretrained.attention_interface

    rs.load().trace("The keys")
    model = rs.load(directory)
    model.trace("abc", logits=True)
    rs.operators(model.view)
    model.run("abc", edit={(0, 0): lambda q, k, v, mechanism: v * 0 + q * 0})
    print([name for name in sys.modules if name.split(".")[0] == "transformers"])


def test_transformers_is_never_imported(tmp_path: Path) -> None:
    """Not by our own models, not by the default model, and not by the interface to transformers before it is used."""
    saved("own", tmp_path, tokenizer=character_tokenizer(["abc"], []))
    process = run_in_fork(lambda: without_transformers(tmp_path))
    assert (process.returncode, process.stdout.strip()) == (0, "[]"), process.stderr
