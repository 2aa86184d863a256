"""The wire format: envelopes, quantised arrays, results and pictures round-trip."""

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
from tests.studio.cases import TEXT, render_text, small
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
def test_an_envelope_round_trips(values: list[np.ndarray], text: str) -> None:
    sent = {
        f"a{index}": wire.to_wire_array(array, [f"d{k}" for k in range(array.ndim)])
        for index, array in enumerate(values)
    }
    data = wire.pack_envelope({"text": text, "nan": float("nan")}, sent)
    header, received = wire.unpack_envelope(data)
    assert (header["text"], header["nan"]) == (text, None)
    payload = 8 + int.from_bytes(data[4:8], "little")
    assert payload % 8 == 0
    for index, array in enumerate(values):
        np.testing.assert_array_equal(received[f"a{index}"].values, array)
        assert received[f"a{index}"].values.dtype == array.dtype
        assert header["arrays"][index]["offset"] % 8 == 0


@given(arrays.arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e3, 1e3) | st.just(float("nan"))))
@settings(max_examples=40)
def test_quantisation_is_off_by_at_most_half_a_level(values: np.ndarray) -> None:
    array = wire.quantise(values, ["x"])
    np.testing.assert_allclose(array.decoded_values, values, atol=0.51 * array.scale + 1e-4)
    assert (np.isnan(values) == np.isnan(array.decoded_values)).all()


@pytest.mark.parametrize("name", ["trajectory", "head_types", "operators"])
def test_a_result_round_trips(name: str) -> None:
    model, analysis = small(), catalogue.analysis_by_name(name)
    subjects = {"trace": model.trace(TEXT), "view": model.view, "model": model}
    dataset = analysis.ask(*(subjects[subject] for subject in analysis.subjects))
    header, arrays_received = wire.unpack_envelope(
        wire.pack_dataset(dataset, analysis, [picture_of(dataset, model.token_strings)])
    )
    assert set(header["fields"]) == set(dataset.data_vars)
    for field, variable in dataset.data_vars.items():
        if variable.dtype.kind in "OUS":
            assert header["texts"][field] == variable.values.tolist()
        else:
            np.testing.assert_allclose(arrays_received[field].decoded_values, variable.values.astype(float), rtol=1e-6)
            assert arrays_received[field].dims == list(variable.dims)
        assert render_text(header["fields"][field]["definition"]) == analysis.fields[field].definition
    assert header["coords"][next(iter(dataset.sizes))]["values"] == dataset[next(iter(dataset.sizes))].values.tolist()
    assert header["pictures"][0]["panels"]


def test_a_field_too_large_is_named_and_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FIELD_BYTES", 20)
    analysis = catalogue.analysis_by_name("trajectory")
    dataset = xr.Dataset({"speed": (("step", "token"), np.zeros((3, 3)))}, attrs={"analysis": "trajectory"})
    header, arrays_received = wire.unpack_envelope(wire.pack_dataset(dataset, analysis, []))
    assert (header["left_out"], arrays_received) == (["speed"], {})


def test_a_picture_has_the_keys_of_its_dataclasses() -> None:
    marks = (
        Line("a", np.arange(2), [1.0, float("nan")]),
        Shape("b", [0, 1], [0, 1]),
        Cells(np.array([[1.0, np.nan]]), marked=frozenset({(0, 1)})),
        Label(0, 1, "</script>"),
    )
    picture = json.loads(wire.encode_json(wire.picture_json(Picture("t", "c", (Panel("p", "about", marks),)))))
    assert picture["kind"] == "picture"
    (panel,) = picture["panels"]
    assert [mark["mark"] for mark in panel["marks"]] == ["lines", "shapes", "cells", "words"]
    assert panel["marks"][0]["y"] == [1.0, None]
    assert panel["marks"][2]["values"] == [[1.0, None]]
    assert panel["marks"][2]["marked"] == [[0, 1]]
    assert set(panel["x"]) == {"label", "names", "marked", "log", "bare", "low", "high"}
