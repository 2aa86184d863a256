"""Published: spikes and attention sinks occur together only in models with norms before their layers."""

from rheoscope.messages.message import Message
from rheoscope.space.published_finding import Comparison, ModelCurves, PublishedFinding

FEW = 0.5
"""Fewer massive tokens per text count as none."""
SINK_RATIO = 5.0
"""A token is a sink in a layer if it receives this many times the attention of an average token."""


def compare_spikes(model: ModelCurves) -> Comparison | None:
    """Whether massive tokens that are sinks occur where the norms say so."""
    sinks = model.curve("massive_tokens.sink_mass")
    if not len(model.curves[model.curves.field == "massive_tokens.sink_mass"]):
        return None
    per_text = float(model.facts["massive_per_text"])
    uniform = model.facts["n_texts"] / model.facts["n_tokens"]
    attention = float(sinks["mean"].max() / uniform) if len(sinks) else 0.0
    occur_together = per_text >= FEW and attention >= SINK_RATIO
    if not occur_together and not model.facts["is_post_norm"]:
        return None  # norms before the sublayers allow both, but do not cause them
    place = Message("after") if model.facts["is_post_norm"] else Message("before")
    numbers = Message(
        "norms {place} the sublayers; {per_text:.2f} massive tokens per text, which receive up to {attention:.1f} times the average "
        "attention in a layer",
        place=place,
        per_text=per_text,
        attention=attention,
    )
    return Comparison(occur_together != bool(model.facts["is_post_norm"]), numbers)


PUBLISHED = (
    PublishedFinding(
        3,
        "spikes_and_sinks",
        Message("Spikes and sinks occur together because of norms before the sublayers"),
        "https://arxiv.org/abs/2603.05498",
        Message(
            "A model with massive tokens that are sinks agrees if its norms are before its sublayers. One with norms after them agrees "
            "if it has no such tokens. A sink receives 5 times the average attention in some layer."
        ),
        compare_spikes,
    ),
)
