"""Published: no trained model is a gradient flow, whose energy would rise in every layer."""

from rheoscope.messages.message import Message
from rheoscope.space.published_finding import Comparison, ModelCurves, PublishedFinding


def compare_energy(model: ModelCurves) -> Comparison | None:
    """The number of layers whose own update lowers the energy of their heads."""
    curve = model.curve("energy.dissipation")
    if not len(curve):
        return None
    n_falls = int((curve["mean"] < 0).sum())
    numbers = Message(
        "the energy falls in {n} of {total} layers; change relative to a gradient step: {low:.2f} to {high:.2f}",
        n=n_falls,
        total=len(curve),
        low=float(curve["mean"].min()),
        high=float(curve["mean"].max()),
    )
    return Comparison(n_falls > 0, numbers)


PUBLISHED = (
    PublishedFinding(
        0,
        "monotone_energy",
        Message("No model has a monotone energy"),
        "https://www.lesswrong.com/posts/Kf8zkKnDajfGGHG7w",
        Message(
            "A model agrees if the attention update of some layer lowers the energy of its own heads (mean over texts). The source "
            "uses the energy of identity matrices on the sphere."
        ),
        compare_energy,
    ),
)
