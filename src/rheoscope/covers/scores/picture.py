"""The picture of `scores`: one map of layers x heads for every part."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message, join
from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Panel, Picture

if TYPE_CHECKING:
    import xarray

TITLES = {
    "centred": Message("Centred tokens"),
    "mean_query": Message("Mean of the cloud as query"),
    "mean_key": Message("Mean of the cloud as key"),
    "query_bias": Message("Query bias"),
    "key_bias": Message("Key bias"),
    "row_sd": Message("Standard deviation of the scores"),
    "positive_share_cloud": Message("Positive share on the cloud"),
}
VALUE_RANGES = {"positive_share_cloud": (0.0, 1.0)}
CAPTION = Message(
    "Shares of the variance of the scores along rows. They sum to 1, and a part that opposes the others is negative (orange). A head "
    "with a large centred part compares tokens. If the mean or a bias dominates, the chosen keys do not depend on the query. The "
    "positive share of a random form is about one half."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A map for every part that is not 0 everywhere."""
    nonzero_fields = [name for name in TITLES if float(abs(dataset[name]).max()) > 0]
    maps = tuple(head_panel(dataset, name, types) for name in nonzero_fields)
    caption = CAPTION if types is None else join(" ", [CAPTION, TYPES_CAPTION])
    return Picture(Message("Parts of the attention scores"), caption, maps)


def head_panel(dataset: "xarray.Dataset", name: str, types: "xarray.Dataset | None") -> Panel:
    """One field as a map with one cell per head and one row per layer."""
    values = dataset[name].values
    value_range, centre = VALUE_RANGES.get(name, (-1.0, 1.0)), 0.5 if name == "positive_share_cloud" else 0.0
    value_range = (0.0, float(values.max())) if name == "row_sd" else value_range
    description, unit = dataset[name].attrs["definition"], Message("nats") if name == "row_sd" else Message("share")
    return head_map(TITLES[name], description, values, value_range, types=types, centre=centre, name=unit)
