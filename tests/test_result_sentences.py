"""Every analysis states its main number in one sentence, and says nothing if it has none."""

import re

import pytest
import xarray as xr

from rheoscope.catalogue import ANALYSIS_MODULES, words_by_name
from rheoscope.messages.catalogue import templates
from rheoscope.messages.message import Message
from rheoscope.space.words import Words
from tests.pictures.cases import example_result


@pytest.mark.parametrize("name", ANALYSIS_MODULES)
def test_every_result_has_a_sentence_with_a_number(name: str) -> None:
    result = example_result(name)
    sentence = words_by_name(name).result_sentence(result)
    assert sentence is not None
    assert re.search(r"\d", sentence)
    assert sentence.endswith(".")
    assert "nan" not in sentence
    assert sentence.template in templates("zh")


def test_a_result_without_its_number_has_no_sentence() -> None:
    words = words_by_name("rollout")
    empty = xr.Dataset({"correlation": float("nan"), "correlation_null": 0.1})
    assert words.result_sentence(empty) is None
    assert words.result_sentence(empty.drop_vars("correlation")) is None
    assert words.result_sentence(empty.fillna(0.5)) is not None


def test_an_analysis_without_words_has_no_sentence() -> None:
    assert Words().result_sentence(xr.Dataset()) is None


def test_an_error_in_a_sentence_is_raised() -> None:
    def fail(dataset: xr.Dataset) -> Message | None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Words(sentence=fail).result_sentence(xr.Dataset())
