"""The weights of a sparse dictionary: its encoder, its directions, and the sites that it reads and writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.running.feature_activations import FeatureActivation
from rheoscope.running.feature_sites import Site

NORMALISATIONS = ("none", "constant_norm_rescale", "layer_norm")
"""How a dictionary scales its inputs: not at all, to the length √d, or to mean 0 and standard deviation 1."""


@dataclass(frozen=True, eq=False, repr=False)
class FeatureWeights:
    """The tensors and settings of a dictionary, as a file describes them.

    `input_bias` is subtracted from the inputs. `normalisation` is one of NORMALISATIONS. `subtracts_mean`: the dictionary reads points
    minus their mean over coordinates. `W_skip` is the linear path of a transcoder.
    """

    W_enc: Float[Tensor, "d m"]
    b_enc: Float[Tensor, " m"]
    W_dec: Float[Tensor, "m e"]
    b_dec: Float[Tensor, " e"]
    activation: FeatureActivation
    reads: Site
    writes: Site
    input_bias: Float[Tensor, " d"] | None = None
    normalisation: str = "none"
    subtracts_mean: bool = False
    W_skip: Float[Tensor, "d e"] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.W_dec)

    @property
    def width(self) -> int:
        return self.W_enc.shape[0]

    @property
    def summary(self) -> Message:
        """The dictionary in one line: its size, its site and its activation function."""
        sizes = {"n": len(self), "width": self.width, "reads": str(self.reads), "kind": type(self.activation).__name__}
        if self.reads == self.writes:
            return Message("{n:,} features of width {width} at {reads}, {kind}", **sizes)
        return Message(
            "{n:,} features of width {width} from {reads} to {writes}, {kind}", **sizes, writes=str(self.writes)
        )
