"""Datasets as JSON: every number, with NaN as null."""

import json
from pathlib import Path

import numpy as np
import xarray as xr

from rheoscope.report.json_file import dataset_to_json, save_json


def test_nan_and_infinity_become_null(tmp_path: Path) -> None:
    dataset = xr.Dataset({"x": ("layer", np.array([1.5, np.nan, np.inf]))}, attrs={"formula": "x̂"})
    assert dataset_to_json(dataset)["data_vars"]["x"]["data"] == [1.5, None, None]
    save_json({"some": dataset}, tmp_path / "a.json")
    written = json.loads((tmp_path / "a.json").read_text())
    assert written["some"]["attrs"]["formula"] == "x̂"
