"""The number of every line of the story, for every text of a card, so that a story can say what is usual in a model."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from rheoscope.report.analysis_runs import Subject, run_analyses
from rheoscope.report.card_clouds import CardCloud
from rheoscope.report.report_settings import report_request
from rheoscope.report.story import STORY_LINES
from rheoscope.space.results import line_on_card
from rheoscope.space.traces import Traces

if TYPE_CHECKING:
    import xarray


def story_numbers(
    clouds: Sequence[CardCloud],
    batches: Sequence[tuple[Traces, ...]],
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.DataArray":
    """(line, text): the number of each line that has one. NaN where a text or a model has none.

    `batches` are the traces of each cloud.

    >>> import rheoscope as rs
    >>> cloud = CardCloud(rs.load(), ["The keys to the cabinet are on the table"])
    >>> story_numbers([cloud], [cloud.traces()]).sizes["text"]
    1
    """
    import xarray as xr

    lines = [line for line in STORY_LINES if line.number is not None]
    requests = [report_request(name) for name in dict.fromkeys(name for line in lines for name in line.needs)]
    rows, names, n_done = [], [], 0
    for cloud, cloud_batches in zip(clouds, batches, strict=True):
        columns = []
        for index, (text, trace) in enumerate(zip(cloud.texts, chain.from_iterable(cloud_batches), strict=True)):
            subject = Subject(cloud.model.for_texts([index]), text, trace)
            results = run_analyses(subject, requests, draw_nulls=False)
            columns.append([line.measured_number(results) for line in lines])
            n_done += 1
            if progress is not None:
                progress(n_done, len(clouds) * len(cloud.texts))
        rows.append(np.array(columns).T)
        names += [line_on_card(line.name, cloud.side) for line in lines]
    return xr.DataArray(np.concatenate(rows), dims=("line", "text"), coords={"line": names})
