"""Texts as strings, ids and batches; wrong texts raise one line."""

from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import without_jaxtyping_checks
from tests.pretrained.cases import (
    CONTEXT,
    EVERY,
    VOCABULARY,
    gap,
    model,
    network,
    text,
    tokenizer,
    traced,
)


def model_with_tokenizer(start: bool = True) -> Any:
    return rs.load(network("llama"), tokenizer=tokenizer(start))


def assert_raises(loaded_model: Any, value: Any, match: str) -> None:
    for method in (loaded_model.trace, loaded_model.run, loaded_model.ids):
        with without_jaxtyping_checks(), pytest.raises(RheoscopeError, match=match) as error:
            method(value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "ids",
    [
        text(),
        text().int(),
        text().tolist(),
        tuple(text().tolist()),
        text().numpy(),
        list(text().numpy()),
    ],
    ids=["tensor", "int32", "list", "tuple", "array", "list of numpy integers"],
)
def test_ids_in_any_form_are_equal(ids: Any) -> None:
    with without_jaxtyping_checks():
        trace = model("gpt2").trace(ids)
        assert torch.equal(model("gpt2").run(ids), traced("gpt2").logits)
    assert torch.equal(trace.points, traced("gpt2").points)
    assert trace.ids.dtype is torch.int64


def test_string_goes_through_the_tokenizer() -> None:
    trace = model_with_tokenizer().trace("w7 w8", logits=True)
    assert trace.ids.tolist() == [1, 7, 8]
    assert trace.tokens == ["<s>", "w7", "w8"]
    assert trace.text == "w7 w8"
    assert torch.equal(trace.points, model("llama").trace([1, 7, 8]).points)
    assert torch.equal(model_with_tokenizer().run("w7 w8"), model("llama").run([1, 7, 8]))
    assert model_with_tokenizer(start=False).ids("w7 w8").tolist() == [7, 8]


def test_list_of_texts_is_a_batch() -> None:
    batch = model_with_tokenizer().trace(["w7 w8", "w9", [4, 5, 6, 7]])
    assert [trace.text for trace in batch] == ["w7 w8", "w9", ""]
    assert [len(trace) for trace in batch] == [3, 2, 4]
    assert batch[0].tokens == ["<s>", "w7", "w8"]
    assert gap(batch[1].points, model_with_tokenizer().trace("w9").points) <= 1e-5
    (alone,) = model_with_tokenizer().trace(["w9"])
    assert torch.equal(alone.points, model_with_tokenizer().trace("w9").points)


def test_texts_of_one_length_are_not_padded() -> None:
    first, second = model("llama").trace([text(1), text(2)], logits=True)
    assert gap(first.points, model("llama").trace(text(1)).points) <= 1e-6
    assert gap(second.logits, model("llama").trace(text(2), logits=True).logits) <= 1e-5


def test_one_token_is_a_text() -> None:
    for name in EVERY:
        trace = model(name).trace([5])
        assert trace.points.shape[1] == 1
        assert trace.weights(0, 0).tolist() == [[1.0]]


# Wrong texts


@pytest.mark.parametrize("value", [[], (), torch.tensor([], dtype=torch.long), np.array([], dtype=int)])
def test_empty_ids_raise(value: Any) -> None:
    assert_raises(model("gpt2"), value, "the text has no tokens, expected at least one")


def test_empty_string_raises() -> None:
    """Even if the tokenizer adds a start token."""
    for start in (False, True):
        assert_raises(model_with_tokenizer(start=start), "", "the text has no tokens, expected at least one")


@pytest.mark.parametrize("name", EVERY)
def test_context_length_is_the_models(name: str) -> None:
    """The model runs up to its last position; a longer text raises before anything runs."""
    longest = model(name).view.context_length
    assert longest == (CONTEXT - 2 if name == "roberta" else CONTEXT)
    assert model(name).trace(text(0, longest)).points.shape[1] == longest
    for method in (model(name).trace, model(name).run):
        with pytest.raises(
            RheoscopeError,
            match=rf"the text has {longest + 1} tokens, but the model reads at most {longest}; use a shorter",
        ):
            method(text(0, longest + 1))
    with pytest.raises(RheoscopeError, match="use a shorter text"):
        model(name).trace([text(0, 3), text(0, longest + 1)])


@pytest.mark.parametrize("ids", [[-1, 3], [3, VOCABULARY], [10**12]])
def test_ids_out_of_range_raise(ids: list[int]) -> None:
    assert_raises(model("gpt2"), ids, rf"token ids must lie between 0 and {VOCABULARY - 1}, got ")


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.0, 2.0]),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor(3),
        torch.tensor([True, False]),
        torch.tensor([1j]),
        np.array([0.5]),
        None,
        {"a": 1},
        3.5,
    ],
    ids=lambda x: type(x).__name__,
)
def test_values_that_are_no_ids_raise(value: Any) -> None:
    assert_raises(
        model("gpt2"), value, r"a text must be a string or a list of token ids, got .*; type model.trace\(\[1, 2, 3\]\)"
    )


@pytest.mark.parametrize("value", [[0.5, 1.0], [[1, 2], [0.5]], [None], ["w5", 3.5]])
def test_batch_of_other_values_raises(value: Any) -> None:
    with (
        without_jaxtyping_checks(),
        pytest.raises(RheoscopeError, match="a text must be a string or a list of token ids"),
    ):
        model_with_tokenizer().trace(value)


def test_run_accepts_one_text_only() -> None:
    with (
        without_jaxtyping_checks(),
        pytest.raises(RheoscopeError, match="a text must be a string or a list of token ids, got list"),
    ):
        model_with_tokenizer().run(["w5", "w6"])


def test_string_without_a_tokenizer_raises() -> None:
    assert_raises(model("gpt2"), "hello", r"this model has no tokenizer, expected a tokenizer.json")


def test_points_require_no_gradients() -> None:
    trace = traced("llama")
    assert not trace.points.requires_grad
    assert not trace.logits.requires_grad
    assert model("llama").run(text()).requires_grad


def test_trace_works_in_inference_mode() -> None:
    with torch.inference_mode():
        trace = model("llama").trace(text())
        assert torch.equal(trace.points, traced("llama").points)
        assert torch.equal(trace.weights(1, 1), traced("llama").weights(1, 1))
        shifted = model("llama").run(text(), hooks={"L0.resid_mid": lambda x: x + 1})
    assert gap(shifted, traced("llama").logits) > 1e-3
