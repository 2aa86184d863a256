"""Sparse features: a dictionary that writes the points of a site as sums of a few directions, a constant and an error."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.messages.message import Message
from rheoscope.notebook_html import card
from rheoscope.running.feature_files import DEFAULT_FEATURES, read_weights, write_weights
from rheoscope.running.feature_weights import FeatureWeights
from rheoscope.shapes import RheoscopeError
from rheoscope.space.trace import Trace
from rheoscope.space.view import View

LAYER_NORM_EPS = 1e-5
"""Added to the standard deviation of an input by dictionaries that were trained on normalised inputs."""


@dataclass(frozen=True, eq=False)
class FeatureSum:
    """The vectors of some tokens as sums: scale Σ_a f_a d_a + constant + error, exactly."""

    activations: Float[Tensor, "n m"]
    scale: Float[Tensor, "n 1"]
    constant: Float[Tensor, "n e"]
    error: Float[Tensor, "n e"]


@dataclass(frozen=True, eq=False, repr=False)
class Features(FeatureWeights):
    """A sparse dictionary: an autoencoder or a transcoder of one site of a model.

    **Question** Which directions that people can name does a point consist of, and what do the heads do with them?

    **Formula** f = σ((x − b) W_enc + b_enc), x = Σ_a f_a d_a + b_dec + error, where the d_a are the rows of W_dec. A transcoder
    reads x and writes another vector y = Σ_a f_a d_a + b_dec + error, such as the update of an MLP.

    **Shapes** W_enc (d, m), W_dec (m, e). `reads` and `writes` are sites, such as `L3.resid_post` or `L3.mlp`.

    **Laws** Whatever the dictionary, the sum is exact, because the error is part of it.

    **See also** `rs.score_attribution(trace, …, features=…)`, `rs.readout(trace, features=…)`, `rs.feature_map(head, features)`,
    `rs.feature_quality(model, texts, features)`.

    >>> import rheoscope as rs
    >>> features = rs.Features.load()
    >>> features.encode(rs.load().trace("The keys to the cabinet").points_at(str(features.reads))).shape[-1] == len(features)
    True
    """

    @staticmethod
    def load(path: str | Path | None = None, site: str | None = None, input_scale: float | None = None) -> "Features":
        """Open a sparse autoencoder or a transcoder: a directory or a safetensors file.

        Without a path it is the dictionary of the default model. The layouts are those of SAELens (`cfg.json` and
        `sae_weights.safetensors`) and of dictionary_learning (`config.json` and the tensors of `ae.pt` as safetensors). Anything else
        is refused by name. Pickles are never read.

        **Settings**
        `site` replaces the site that the files name, or names it if they do not: `L3.resid_post`, `L3.mlp`, `L3.attention`.
        `input_scale` is the factor of the inputs of a dictionary that was trained on scaled points, if its files do not hold it.
        """
        weights = read_weights(DEFAULT_FEATURES if path is None else Path(path), site, input_scale)
        return Features(**vars(weights))

    def save(self, directory: str | Path) -> Path:
        """Write the dictionary of one site in the layout of SAELens, for `Features.load`. Tensors that float16 holds exactly are
        stored so."""
        return write_weights(self, Path(directory))

    def __repr__(self) -> str:
        return f"<Features {self.name!r}: {self.summary}>"

    def _repr_html_(self) -> str:
        return card(self, f"Features {self.name}", {"dictionary": self.summary, **self.facts})

    @property
    def name(self) -> str:
        """The name of the dictionary: that of its directory."""
        return str(self.facts.get("name", "features"))

    @property
    def provenance(self) -> dict[str, str]:
        """The dictionary in the attributes of a result."""
        return {
            "features": f"{self.name}: {self.summary}",
            "features_weights": str(self.facts.get("weights", "unknown")),
        }

    def check(self, view: View) -> None:
        """Raise for a model of another width, or without the layer of this dictionary."""
        for width in (self.width, self.W_dec.shape[-1]):
            if width != view.width:
                raise RheoscopeError(
                    Message(
                        "the dictionary {name!r} has width {received}, but the model has width {expected}",
                        name=self.name,
                        received=width,
                        expected=view.width,
                    )
                )
        self.reads.check_layer(view)
        self.writes.check_layer(view)

    @torch.no_grad()
    def encode(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        """The activations of all features for vectors at the site that the dictionary reads."""
        x = x - x.mean(-1, keepdim=True) if self.subtracts_mean else x
        scale, shift = self._input_scale(x)
        inputs = (x - shift) / scale
        inputs = inputs if self.input_bias is None else inputs - self.input_bias.to(x)
        return self.activation.to(x).apply(inputs @ self.W_enc.to(x) + self.b_enc.to(x))

    @torch.no_grad()
    def reconstruct(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        """The sum of all active features and the constant, without the error."""
        scale, constant = self._output_terms(x)
        return (self.encode(x) @ self.W_dec.to(x)) * scale + constant

    @torch.no_grad()
    def decompose(self, trace: Trace, positions: list[int]) -> FeatureSum:
        """The vectors of some tokens at the site that the dictionary writes, as an exact sum."""
        self.check(trace.view)
        x = self.reads.vectors(trace, positions)
        target = x if self.reads == self.writes else self.writes.vectors(trace, positions)
        scale, constant = self._output_terms(x)
        activations = self.encode(x)
        error = target - (activations @ self.W_dec.to(x)) * scale - constant
        return FeatureSum(activations, scale, constant, error)

    def _input_scale(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n 1"], Float[Tensor, "n 1"]]:
        """The factor by which inputs are divided, and the constant that is subtracted before."""
        zeros = torch.zeros_like(x[..., :1])
        if self.normalisation == "constant_norm_rescale":
            return x.norm(dim=-1, keepdim=True) / self.width**0.5, zeros
        if self.normalisation == "layer_norm":
            return x.std(-1, keepdim=True) + LAYER_NORM_EPS, x.mean(-1, keepdim=True)
        return torch.ones_like(zeros), zeros

    def _output_terms(self, x: Float[Tensor, "n d"]) -> tuple[Float[Tensor, "n 1"], Float[Tensor, "n e"]]:
        """The factor of the directions, and the constant. An autoencoder scales its outputs back, a transcoder does not."""
        if self.reads != self.writes:
            constant = self.b_dec.to(x).expand(len(x), -1)
            return torch.ones_like(x[..., :1]), constant if self.W_skip is None else constant + x @ self.W_skip.to(x)
        x = x - x.mean(-1, keepdim=True) if self.subtracts_mean else x
        scale, shift = self._input_scale(x)
        scale = scale - LAYER_NORM_EPS if self.normalisation == "layer_norm" else scale
        return scale, self.b_dec.to(x) * scale + shift
