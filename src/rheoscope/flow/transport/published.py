"""Published: tokens turn from their own embedding to that of the next token deep in the network."""

import math

from rheoscope.messages.message import Message
from rheoscope.space.published_finding import Comparison, ModelCurves, PublishedFinding


def compare_alignment(model: ModelCurves) -> Comparison | None:
    """The depth from which on tokens are closer to the next token than to their own one."""
    own, following = model.curve("transport.toward_own"), model.curve("transport.toward_next")
    if not len(own) or len(own) != len(following) or not model.facts["is_causal"]:
        return None
    is_ahead = (following["mean"] > own["mean"]).tolist()
    n_last = next((index for index, ahead in enumerate(reversed(is_ahead)) if not ahead), len(is_ahead))
    switches = 0 < n_last < len(is_ahead)
    depth = float(own.depth.iloc[-n_last]) if switches else math.nan
    numbers = Message(
        "own token {own_first:.2f} to {own_last:.2f}, next token {next_first:.2f} to {next_last:.2f}; switch at depth {depth:.2f}; "
        "next-type share where the model errs {share:.3f} (chance {chance:.3f})",
        own_first=float(own["mean"].iloc[0]),
        own_last=float(own["mean"].iloc[-1]),
        next_first=float(following["mean"].iloc[0]),
        next_last=float(following["mean"].iloc[-1]),
        depth=depth,
        share=model.number("transport.next_type_share_mispredicted"),
        chance=model.number("transport.next_type_share_mispredicted_null"),
    )
    return Comparison(switches, numbers)


PUBLISHED = (
    PublishedFinding(
        1,
        "input_to_output",
        Message("Tokens switch from the alignment with their input to that with their output at depth"),
        "https://arxiv.org/abs/2602.14760",
        Message(
            "A causal model agrees if tokens are closer to their own token at first, and from some layer on to the next one."
        ),
        compare_alignment,
    ),
)
