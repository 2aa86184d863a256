"""The picture of movement in an image: how far every patch moves, drawn on the photo."""

from rheoscope.flow.photo_panels import number_panel
from rheoscope.flow.trajectory import predictor_path
from rheoscope.messages.message import Message
from rheoscope.picture.picture import Panel
from rheoscope.space.results import Results


def panels(results: Results) -> list[Panel]:
    """The photo coloured by the path length of its patches, or for a text the path of the predicting token."""
    dataset, patches = results.datasets["trajectory"], results.required_trace.patches
    if patches is None:
        return predictor_path.panels(results)
    about = Message(
        "Every square is a patch of the image, coloured by its path length: the sum of its displacements by all half-layers. "
        "Grey patches are massive tokens."
    )
    values = patches.on_grid(dataset.token.values.tolist(), dataset.path_length.values.tolist())
    return [number_panel(Message("How far each patch moves"), about, patches, values, Message("path length"))]
