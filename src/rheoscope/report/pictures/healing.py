"""How soon a loss is back: the held-out loss of every arm along the tokens that it was fine-tuned on."""

from typing import TYPE_CHECKING

from rheoscope.picture.field_panels import curve_panel
from rheoscope.picture.picture import Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Held-out loss after fine-tuning on so many tokens, the same batches for all: the model as it is, with every M made symmetric, "
    "and with random changes of the same size."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """A curve an arm."""
    return Picture("How soon the loss is back", CAPTION, (curve_panel(dataset, "loss", "tokens", "arm"),))
