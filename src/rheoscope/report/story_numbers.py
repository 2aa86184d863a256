"""The number of every line of the story, for every text of a card, so that a story can say what is usual in a model."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.report_settings import report_request
from rheoscope.report.story import STORY_LINES
from rheoscope.space.model import Model, Text

if TYPE_CHECKING:
    import xarray


def story_numbers(
    model: Model, texts: Sequence[Text], progress: Callable[[int, int], None] | None = None
) -> "xarray.DataArray":
    """(line, text): the number of each line that has one. NaN where a text or a model has none.

    >>> import rheoscope as rs
    >>> story_numbers(rs.load(), ["The keys to the cabinet are on the table"]).sizes["text"]
    1
    """
    import xarray as xr

    lines = [line for line in STORY_LINES if line.number is not None]
    requests = [report_request(name) for name in dict.fromkeys(name for line in lines for name in line.needs)]
    columns = []
    for text in texts:
        results = run_analyses(Subject(model, text, model.trace(text)), requests, draw_nulls=False)
        columns.append([line.measured_number(results) for line in lines])
        if progress is not None:
            progress(len(columns), len(texts))
    return xr.DataArray(np.array(columns).T, dims=("line", "text"), coords={"line": [line.name for line in lines]})
