"""What a text may be: strings, ids, batches; and what is refused in one line."""

from typing import Any

import numpy as np
import pytest
import torch

import rheoscope as rs
from rheoscope.shapes import RheoscopeError
from tests.attention.cases import as_users_run
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


def spoken(start: bool = True) -> Any:
    return rs.load(network("llama"), tokenizer=tokenizer(start))


def refused(of: Any, given: Any, match: str) -> None:
    for ask in (of.trace, of.run, of.ids):
        with as_users_run(), pytest.raises(RheoscopeError, match=match) as told:
            ask(given)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "given",
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
def test_ids_in_any_form(given: Any) -> None:
    with as_users_run():
        trace = model("gpt2").trace(given)
        assert torch.equal(model("gpt2").run(given), traced("gpt2").logits)
    assert torch.equal(trace.points, traced("gpt2").points)
    assert trace.ids.dtype is torch.int64


def test_a_string_goes_through_the_tokenizer() -> None:
    trace = spoken().trace("w7 w8", logits=True)
    assert trace.ids.tolist() == [1, 7, 8]
    assert trace.tokens == ["<s>", "w7", "w8"]
    assert trace.text == "w7 w8"
    assert torch.equal(trace.points, model("llama").trace([1, 7, 8]).points)
    assert torch.equal(spoken().run("w7 w8"), model("llama").run([1, 7, 8]))
    assert spoken(start=False).ids("w7 w8").tolist() == [7, 8]


def test_a_list_of_texts_is_a_batch() -> None:
    batch = spoken().trace(["w7 w8", "w9", [4, 5, 6, 7]])
    assert [trace.text for trace in batch] == ["w7 w8", "w9", ""]
    assert [len(trace) for trace in batch] == [3, 2, 4]
    assert batch[0].tokens == ["<s>", "w7", "w8"]
    assert gap(batch[1].points, spoken().trace("w9").points) <= 1e-5
    (alone,) = spoken().trace(["w9"])
    assert torch.equal(alone.points, spoken().trace("w9").points)


def test_texts_of_one_length_are_not_padded() -> None:
    one, other = model("llama").trace([text(1), text(2)], logits=True)
    assert gap(one.points, model("llama").trace(text(1)).points) <= 1e-6
    assert gap(other.logits, model("llama").trace(text(2), logits=True).logits) <= 1e-5


def test_one_token_is_a_text() -> None:
    for name in EVERY:
        trace = model(name).trace([5])
        assert trace.points.shape[1] == 1
        assert trace.weights(0, 0).tolist() == [[1.0]]


# Refused


@pytest.mark.parametrize("given", [[], (), torch.tensor([], dtype=torch.long), np.array([], dtype=int)])
def test_no_tokens(given: Any) -> None:
    refused(model("gpt2"), given, "the text has no tokens; type at least one word")


def test_an_empty_string() -> None:
    """Also where the tokenizer would put a start token before nothing."""
    for start in (False, True):
        refused(spoken(start=start), "", "the text has no tokens; type at least one word")


@pytest.mark.parametrize("name", EVERY)
def test_the_context_is_the_models(name: str) -> None:
    """Up to the last position the model runs, beyond it the text is refused before anything runs."""
    longest = model(name).view.context
    assert longest == (CONTEXT - 2 if name == "roberta" else CONTEXT)
    assert model(name).trace(text(0, longest)).points.shape[1] == longest
    for ask in (model(name).trace, model(name).run):
        with pytest.raises(
            RheoscopeError,
            match=rf"the text has {longest + 1} tokens, the model reads at most {longest}; type a shorter",
        ):
            ask(text(0, longest + 1))
    with pytest.raises(RheoscopeError, match="type a shorter text"):
        model(name).trace([text(0, 3), text(0, longest + 1)])


@pytest.mark.parametrize("ids", [[-1, 3], [3, VOCABULARY], [10**12]])
def test_ids_out_of_range(ids: list[int]) -> None:
    refused(model("gpt2"), ids, rf"token ids lie in 0 to {VOCABULARY - 1}, got .*; type ids of this model")


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([1.0, 2.0]),
        torch.tensor([[1, 2]]),
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
def test_no_whole_numbers(given: Any) -> None:
    refused(
        model("gpt2"), given, r"one text is a string or a list of whole numbers, got .*; type a string or \[1, 2, 3\]"
    )


@pytest.mark.parametrize("given", [[0.5, 1.0], [[1, 2], [0.5]], [None], ["w5", 3.5]])
def test_a_batch_of_something_else(given: Any) -> None:
    with as_users_run(), pytest.raises(RheoscopeError, match="one text is a string or a list of whole numbers"):
        spoken().trace(given)


def test_run_takes_one_text() -> None:
    with (
        as_users_run(),
        pytest.raises(RheoscopeError, match="one text is a string or a list of whole numbers, got list"),
    ):
        spoken().run(["w5", "w6"])


def test_a_string_without_a_tokenizer() -> None:
    refused(model("gpt2"), "hello", r"this model has no tokenizer, so it reads no text; put its tokenizer.json")


def test_points_are_not_tied_to_the_graph() -> None:
    trace = traced("llama")
    assert not trace.points.requires_grad
    assert not trace.logits.requires_grad
    assert model("llama").run(text()).requires_grad


def test_a_trace_in_inference_mode() -> None:
    with torch.inference_mode():
        trace = model("llama").trace(text())
        assert torch.equal(trace.points, traced("llama").points)
        assert torch.equal(trace.weights(1, 1), traced("llama").weights(1, 1))
        shifted = model("llama").run(text(), hooks={"L0.resid_mid": lambda x: x + 1})
    assert gap(shifted, traced("llama").logits) > 1e-3
