"""Published: spikes and attention sinks occur together only in models with norms before their layers."""

from rheoscope.messages.message import Message
from rheoscope.space.published_finding import Comparison, ModelCurves, PublishedFinding

FEW = 0.5
"""Fewer massive tokens per text count as none."""
SINK_SHARE, MIN_EXCESS = 0.3, 2.0
"""A head has a sink if one token receives this share of its attention, and this many times what uniform attention gives."""
FEW_HEADS = 0.1
"""A model has sinks if more than this share of its heads have one."""
RECEIVED = "head_statistics.max_received_share"


def compare_spikes(model: ModelCurves) -> Comparison | None:
    """Whether massive tokens and sinks occur together only where norms are before the sublayers."""
    if RECEIVED not in model.heads:
        return None
    received = model.heads[RECEIVED]
    is_causal, is_post_norm = bool(model.facts["is_causal"]), bool(model.facts["is_post_norm"])
    uniform = uniform_share(model.facts["n_tokens"] / model.facts["n_texts"], is_causal)
    n_sinks, per_text = (
        int((received > max(SINK_SHARE, MIN_EXCESS * uniform)).sum()),
        float(model.facts["massive_per_text"]),
    )
    occur_together = per_text >= FEW and n_sinks > FEW_HEADS * len(received)
    numbers = Message(
        "norms {place} the sublayers; {per_text:.2f} massive tokens per text; {n} of {total} heads have a sink",
        place=Message("after") if is_post_norm else Message("before"),
        per_text=per_text,
        n=n_sinks,
        total=len(received),
    )
    if is_post_norm:
        return Comparison(not occur_together, numbers)
    return Comparison(True if occur_together else None, numbers)


def uniform_share(n_tokens: float, is_causal: bool) -> float:
    """The share of uniform attention that the first token receives: 1/n, or the mean of 1/i over queries i if causal.

    >>> round(uniform_share(2, is_causal=True), 2), uniform_share(4, is_causal=False)
    (0.75, 0.25)
    """
    n = max(1, round(n_tokens))
    return sum(1 / i for i in range(1, n + 1)) / n if is_causal else 1 / n


PUBLISHED = (
    PublishedFinding(
        3,
        "spikes_and_sinks",
        Message("Spikes and sinks occur together because of norms before the sublayers"),
        "https://arxiv.org/abs/2603.05498",
        Message(
            "A model with norms before its sublayers agrees if it has massive tokens and sinks. Without them the finding predicts "
            "nothing. One with norms after them agrees if it does not have both. A head has a sink if one token receives 30 % of its "
            "attention and twice what uniform attention gives. A model has sinks if more than a tenth of its heads have one."
        ),
        compare_spikes,
    ),
)
