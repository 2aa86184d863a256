"""The picture of `learned`: every quantity during training, with its null."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.picture.field_panels import field_panel, main_fields
from rheoscope.picture.picture import Picture

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "Every quantity at the observed steps, on one held-out text. Dashed: the null in the same model, or equal weights. "
    "Step 0 is the untrained model."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """One panel per quantity."""
    names = [name for name in main_fields(dataset) if dataset[name].dims == ("training_step",)]
    return Picture(
        Message("How geometry forms while a model learns"), CAPTION, tuple(field_panel(dataset, name) for name in names)
    )
