"""A step of the stream as a value: the embedding, or where in which layer."""

import re
from dataclasses import dataclass

from rheoscope.shapes import RheoscopeError

IN_A_LAYER = ("attn_sum", "resid_mid", "cross_sum", "resid_cross", "mlp_sum", "resid_post")
"""The steps of a layer in the order of the stream; a sum is what a norm after attention, cross attention or MLP reads."""
_LABEL = re.compile(rf"L(0|[1-9][0-9]*)\.({'|'.join(IN_A_LAYER)})")


@dataclass(frozen=True)
class Step:
    """Where the stream is looked at: `embed`, or a layer (counted from 0) and a half of it, such as `L3.resid_mid`.

    >>> Step(3, "resid_mid"), str(Step(3, "resid_mid")), Step.parse("L3.resid_post").is_end_of_layer
    (Step(layer=3, kind='resid_mid'), 'L3.resid_mid', True)
    """

    layer: int | None
    kind: str

    def __post_init__(self) -> None:
        if not (self.layer is None and self.kind == "embed") and not _LABEL.fullmatch(str(self)):
            raise RheoscopeError(
                f"there is no step {str(self)!r}; type Step.parse('embed') or Step.parse('L3.resid_mid')"
            )

    def __str__(self) -> str:
        return self.kind if self.layer is None else f"L{self.layer}.{self.kind}"

    @staticmethod
    def parse(label: str) -> "Step":
        """The step of a label, `embed` or `L3.resid_mid`; anything else is refused."""
        if label == "embed":
            return EMBED
        found = _LABEL.fullmatch(label)
        if found is None:
            raise RheoscopeError(
                f"there is no step {label!r}; type embed, or a layer and one of {', '.join(IN_A_LAYER)}: L3.resid_mid"
            )
        return Step(int(found[1]), found[2])

    @property
    def is_embed(self) -> bool:
        """The start of the stream."""
        return self.layer is None

    @property
    def is_end_of_layer(self) -> bool:
        """What the next layer reads."""
        return self.kind == "resid_post"

    @property
    def is_sum(self) -> bool:
        """The sum that a norm reads, in models whose norms come after: the next step is what the norm makes of it."""
        return self.kind.endswith("_sum")

    @property
    def is_cross(self) -> bool:
        """Written by attention to a source."""
        return "cross" in self.kind


EMBED = Step(None, "embed")
