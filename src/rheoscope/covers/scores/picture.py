"""What the scores of every head are made of: a map of layers x heads for every part."""

from typing import TYPE_CHECKING

from rheoscope.picture.head_map import TYPES_CAPTION, head_map
from rheoscope.picture.picture import Panel, Picture

if TYPE_CHECKING:
    import xarray

TITLES = {
    "centred": "The form on the cloud",
    "mean_query": "Keys the mean asks for",
    "mean_key": "The mean as key",
    "query_bias": "Bias of queries",
    "key_bias": "Bias of keys",
    "row_sd": "Spread of the scores (nats)",
    "positive_share_cloud": "Positive share on the cloud",
}
VALUE_RANGES = {"positive_share_cloud": (0.0, 1.0)}
CAPTION = (
    "Shares of what softmax sees of the scores; they add up to 1, and a part that works against the others is negative "
    "(orange). Where the form on the cloud is large, a head compares tokens; where the mean or a bias is, the keys are chosen "
    "whoever asks. The positive share is near one half for a form without preference."
)


def picture(dataset: "xarray.Dataset", types: "xarray.Dataset | None" = None) -> Picture:
    """A map for every part that is anywhere at work."""
    nonzero_fields = [name for name in TITLES if float(abs(dataset[name]).max()) > 0]
    maps = tuple(head_panel(dataset, name, types) for name in nonzero_fields)
    return Picture("What scores are made of", CAPTION + TYPES_CAPTION * (types is not None), maps)


def head_panel(dataset: "xarray.Dataset", name: str, types: "xarray.Dataset | None") -> Panel:
    """One square a head, a row a layer."""
    values = dataset[name].values
    value_range, centre = VALUE_RANGES.get(name, (-1.0, 1.0)), 0.5 if name == "positive_share_cloud" else 0.0
    value_range = (0.0, float(values.max())) if name == "row_sd" else value_range
    description, unit = dataset[name].attrs["definition"], "nats" if name == "row_sd" else "share"
    return head_map(TITLES[name], description, values, value_range, types=types, centre=centre, name=unit)
