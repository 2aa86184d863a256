"""What every analysis asks of a model: that it made the Trace, and which texts were meant."""

import pytest
import torch

from rheoscope.shapes import RheoscopeError
from rheoscope.space.model import as_list, check_made_by
from tests.cases import model, traced


def test_a_trace_belongs_to_the_weights_that_made_it() -> None:
    check_made_by(model("gpt2"), traced("gpt2"))
    with pytest.raises(
        RheoscopeError, match=r"made by other weights .* than the model.s .*; type model.trace"
    ) as error:
        check_made_by(model("gpt2"), traced("opt"))
    assert "\n" not in str(error.value)


def test_one_text_or_several() -> None:
    ids = torch.tensor([3, 4])
    assert as_list("The keys") == ["The keys"]
    assert as_list([3, 4]) == [[3, 4]]
    assert as_list(ids) == [ids]
    assert as_list(["a", "b"]) == ["a", "b"]
    assert as_list(([3], [4])) == [[3], [4]]
