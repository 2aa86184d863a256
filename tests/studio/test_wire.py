"""What travels arrives: the envelope against the Dataset, bytes against numbers, pictures against their dataclasses."""

import json

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rheoscope import catalogue
from rheoscope.picture.picture import Cells, Label, Line, Panel, Picture, Shape
from rheoscope.report.draw_result import picture_of
from rheoscope.studio import wire
from tests.studio.cases import TEXT, small
from tests.texts import any_text


@given(
    st.lists(
        arrays.arrays(
            st.sampled_from([np.float32, np.int32, np.uint8, np.float16]), arrays.array_shapes(max_dims=3, max_side=4)
        ),
        max_size=4,
    ),
    any_text(max_size=9),
)
@settings(max_examples=12)
def test_an_envelope_gives_back_what_was_put_in(values: list[np.ndarray], word: str) -> None:
    sent = {f"a{at}": wire.to_wire_array(one, [f"d{k}" for k in range(one.ndim)]) for at, one in enumerate(values)}
    data = wire.pack_envelope({"word": word, "nan": float("nan")}, sent)
    header, found = wire.unpack_envelope(data)
    assert (header["word"], header["nan"]) == (word, None)
    payload = 8 + int.from_bytes(data[4:8], "little")
    assert payload % 8 == 0
    for at, one in enumerate(values):
        np.testing.assert_array_equal(found[f"a{at}"].values, one)
        assert found[f"a{at}"].values.dtype == one.dtype
        assert header["arrays"][at]["offset"] % 8 == 0


@given(arrays.arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e3, 1e3) | st.just(float("nan"))))
@settings(max_examples=40)
def test_a_byte_is_off_by_half_a_step_at_most(values: np.ndarray) -> None:
    one = wire.quantise(values, ["x"])
    np.testing.assert_allclose(one.decoded_values, values, atol=0.51 * one.scale + 1e-4)
    assert (np.isnan(values) == np.isnan(one.decoded_values)).all()


@pytest.mark.parametrize("name", ["trajectory", "head_types", "operators"])
def test_an_answer_arrives_as_it_was_found(name: str) -> None:
    model, asked = small(), catalogue.analysis_by_name(name)
    given = {"trace": model.trace(TEXT), "view": model.view, "model": model}
    found = asked.ask(*(given[subject] for subject in asked.subjects))
    header, numbers = wire.unpack_envelope(wire.pack_dataset(found, asked, [picture_of(found, model.token_strings)]))
    assert set(header["fields"]) == set(found.data_vars)
    for field, one in found.data_vars.items():
        if one.dtype.kind in "OUS":
            assert header["texts"][field] == one.values.tolist()
        else:
            np.testing.assert_allclose(numbers[field].decoded_values, one.values.astype(float), rtol=1e-6)
            assert numbers[field].dims == list(one.dims)
        assert header["fields"][field]["definition"] == asked.fields[field].definition
    assert header["coords"][next(iter(found.sizes))]["values"] == found[next(iter(found.sizes))].values.tolist()
    assert header["pictures"][0]["panels"]


def test_a_field_too_large_is_named_and_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FIELD_BYTES", 20)
    asked = catalogue.analysis_by_name("trajectory")
    found = xr.Dataset({"speed": (("step", "token"), np.zeros((3, 3)))}, attrs={"analysis": "trajectory"})
    header, numbers = wire.unpack_envelope(wire.pack_dataset(found, asked, []))
    assert (header["left_out"], numbers) == (["speed"], {})


def test_a_picture_has_the_keys_of_its_dataclasses() -> None:
    marks = (
        Line("a", np.arange(2), [1.0, float("nan")]),
        Shape("b", [0, 1], [0, 1]),
        Cells(np.array([[1.0, np.nan]]), marked=frozenset({(0, 1)})),
        Label(0, 1, "</script>"),
    )
    told = json.loads(wire.encode_json(wire.picture_json(Picture("t", "c", (Panel("p", "about", marks),)))))
    assert told["kind"] == "picture"
    (panel,) = told["panels"]
    assert [one["mark"] for one in panel["marks"]] == ["lines", "shapes", "cells", "words"]
    assert panel["marks"][0]["y"] == [1.0, None]
    assert panel["marks"][2]["values"] == [[1.0, None]]
    assert panel["marks"][2]["marked"] == [[0, 1]]
    assert set(panel["x"]) == {"label", "names", "marked", "log", "bare", "low", "high"}
