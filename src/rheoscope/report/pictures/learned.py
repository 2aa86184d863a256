"""How geometry forms while a model learns: a curve for every quantity along training, what chance gives dashed beside it."""

from typing import TYPE_CHECKING

from rheoscope.picture.field_panels import field_panel, main_fields
from rheoscope.picture.picture import Picture

if TYPE_CHECKING:
    import xarray

CAPTION = (
    "Every quantity of the model at the steps that were looked at, on one held-out text. Dashed is what chance gives in the same model, "
    "or equal weights; the first point, at step 0, is the untrained model."
)


def picture(dataset: "xarray.Dataset") -> Picture:
    """A panel a quantity."""
    names = [name for name in main_fields(dataset) if dataset[name].dims == ("training_step",)]
    return Picture(
        "How geometry forms while a model learns", CAPTION, tuple(field_panel(dataset, name) for name in names)
    )
