"""A Trace must belong to its model, and one text or several become a list of texts."""

import pytest
import torch

from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import as_text_list, check_same_weights
from tests.cases import model, traced


def test_trace_of_other_weights_raises() -> None:
    check_same_weights(model("gpt2"), traced("gpt2"))
    with pytest.raises(
        RheoscopeError, match=r"this trace comes from weights .*, but the model has weights .*; type model.trace"
    ) as error:
        check_same_weights(model("gpt2"), traced("opt"))
    assert "\n" not in str(error.value)


def test_one_text_or_several_become_a_list() -> None:
    ids = torch.tensor([3, 4])
    assert as_text_list("The keys") == ["The keys"]
    assert as_text_list([3, 4]) == [[3, 4]]
    assert as_text_list(ids) == [ids]
    assert as_text_list(["a", "b"]) == ["a", "b"]
    assert as_text_list(([3], [4])) == [[3], [4]]
