"""A step of the residual stream: the embedding, or a point within a layer."""

import re
from dataclasses import dataclass

from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

LAYER_STEPS = ("attn_sum", "resid_mid", "cross_sum", "resid_cross", "mlp_sum", "resid_post")
"""The steps of a layer in stream order; a sum is the input of a norm after attention, cross-attention or MLP."""
_STEP_LABEL = re.compile(rf"L(0|[1-9][0-9]*)\.({'|'.join(LAYER_STEPS)})")


@dataclass(frozen=True)
class Step:
    """A step of the stream: `embed`, or a layer (counted from 0) and a kind, such as `L3.resid_mid`.

    >>> Step(3, "resid_mid"), str(Step(3, "resid_mid")), Step.parse("L3.resid_post").is_end_of_layer
    (Step(layer=3, kind='resid_mid'), 'L3.resid_mid', True)
    """

    layer: int | None
    kind: str

    def __post_init__(self) -> None:
        if not (self.layer is None and self.kind == "embed") and not _STEP_LABEL.fullmatch(str(self)):
            raise _unknown_step(str(self))

    def __str__(self) -> str:
        return self.kind if self.layer is None else f"L{self.layer}.{self.kind}"

    @staticmethod
    def parse(label: str) -> "Step":
        """The step of a label, `embed` or `L3.resid_mid`; raises for anything else."""
        if label == "embed":
            return EMBED
        match = _STEP_LABEL.fullmatch(label)
        if match is None:
            raise _unknown_step(label)
        return Step(int(match[1]), match[2])

    @property
    def is_embed(self) -> bool:
        """The start of the stream."""
        return self.layer is None

    @property
    def is_end_of_layer(self) -> bool:
        """The input of the next layer."""
        return self.kind == "resid_post"

    @property
    def is_sum(self) -> bool:
        """The input of a norm in post-norm models; the next step is the norm's output."""
        return self.kind.endswith("_sum")

    @property
    def is_cross(self) -> bool:
        """Written by cross-attention."""
        return "cross" in self.kind


def _unknown_step(label: str) -> RheoscopeError:
    return RheoscopeError(
        Message(
            "there is no step {label!r}; expected embed, or a layer and one of {kinds}",
            label=label,
            kinds=", ".join(LAYER_STEPS),
        ),
        Advice("Step.parse('L3.resid_mid')"),
    )


EMBED = Step(None, "embed")
