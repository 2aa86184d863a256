"""The picture of `healing`: the held-out loss of every arm during fine-tuning."""

from typing import TYPE_CHECKING

from rheoscope.messages.message import Message
from rheoscope.picture.field_panels import curve_panel
from rheoscope.picture.picture import Picture

if TYPE_CHECKING:
    import xarray

CAPTION = Message(
    "Held-out loss during fine-tuning on the same batches: the unchanged model, the model with symmetric "
    "M, and random changes of the same size."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """One curve per arm."""
    return Picture(Message("How fast the loss recovers"), CAPTION, (curve_panel(dataset, "loss", "tokens", "arm"),))
