"""Published: the cloud spreads, keeps its rank and concentrates, and it leaves its clusters near the end."""

from rheoscope.messages.message import Message
from rheoscope.space.published_finding import Comparison, ModelCurves, PublishedFinding, is_below

PLATEAU = 0.9
"""The plateau is where the effective rank exceeds this share of its maximum."""


def compare_phases(model: ModelCurves) -> Comparison | None:
    """Whether the effective rank rises to a maximum inside the network and falls afterwards."""
    curve = model.curve("clusters.effective_rank")
    if len(curve) < 3 or not model.facts["is_causal"]:
        return None
    peak, last = int(curve["mean"].idxmax()), len(curve) - 1
    plateau = curve.depth[curve["mean"] >= PLATEAU * curve["mean"].max()]
    numbers = Message(
        "effective rank {first:.1f} at the embedding, {peak:.1f} at depth {depth:.2f}, {last:.1f} at the end; above 90 % of the "
        "maximum from depth {low:.2f} to {high:.2f}",
        first=float(curve["mean"].iloc[0]),
        peak=float(curve["mean"].iloc[peak]),
        depth=float(curve.depth.iloc[peak]),
        last=float(curve["mean"].iloc[last]),
        low=float(plateau.min()),
        high=float(plateau.max()),
    )
    return Comparison(is_below(curve, 0, peak) and is_below(curve, last, peak), numbers)


def compare_escape(model: ModelCurves) -> Comparison | None:
    """Whether the mean cosine of tokens rises to a maximum inside the network and falls afterwards."""
    curve = model.curve("clusters.mean_cosine_uncentred")
    if len(curve) < 3:
        return None
    peak, last = int(curve["mean"].idxmax()), len(curve) - 1
    numbers = Message(
        "mean cosine {first:.2f} at the embedding, {peak:.2f} at depth {depth:.2f}, {last:.2f} at the end",
        first=float(curve["mean"].iloc[0]),
        peak=float(curve["mean"].iloc[peak]),
        depth=float(curve.depth.iloc[peak]),
        last=float(curve["mean"].iloc[last]),
    )
    return Comparison(is_below(curve, 0, peak) and is_below(curve, last, peak), numbers)


PUBLISHED = (
    PublishedFinding(
        2,
        "three_phases",
        Message("Layers have three phases: the rank of the cloud expands, is stable and concentrates"),
        "https://arxiv.org/abs/2605.09011",
        Message(
            "A causal model agrees if the effective rank rises to a maximum inside the network and falls until the end. "
            "Both changes must exceed two standard errors."
        ),
        compare_phases,
    ),
    PublishedFinding(
        4,
        "escape",
        Message("Tokens gather first, and leave their clusters near the last layers"),
        "https://arxiv.org/abs/2605.07772",
        Message(
            "A model agrees if the mean cosine of tokens rises to a maximum inside the network and falls until the end. "
            "Both changes must exceed two standard errors."
        ),
        compare_escape,
    ),
)
