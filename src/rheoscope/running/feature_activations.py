"""Activation functions of sparse dictionaries: from the products with the encoder to activations that are mostly 0."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

Activations = Float[Tensor, "n m"]


class FeatureActivation(ABC):
    """An activation function of a dictionary. The encoder's bias is already added to `products`."""

    @abstractmethod
    def apply(self, products: Activations) -> Activations:
        """The activations of all features, none of them negative."""

    def to(self, template: Tensor) -> "FeatureActivation":
        """The same function in the precision and on the device of another tensor."""
        return self


@dataclass(frozen=True)
class ReLU(FeatureActivation):
    """f = max(u, 0)."""

    def apply(self, products: Activations) -> Activations:
        return products.relu()


@dataclass(frozen=True, eq=False)
class JumpReLU(FeatureActivation):
    """f = max(u, 0) where u > θ, else 0. BatchTopK uses it after training, with one θ for all features."""

    threshold: Float[Tensor, "*m"]

    def apply(self, products: Activations) -> Activations:
        return products.relu() * (products > self.threshold)

    def to(self, template: Tensor) -> "JumpReLU":
        return JumpReLU(self.threshold.to(template))


@dataclass(frozen=True)
class TopK(FeatureActivation):
    """f = max(u, 0) for the k largest u of a token, else 0."""

    k: int

    def apply(self, products: Activations) -> Activations:
        largest = products.topk(self.k, dim=-1)
        return products.new_zeros(products.shape).scatter(-1, largest.indices, largest.values.relu())


@dataclass(frozen=True, eq=False)
class Gated(FeatureActivation):
    """f = max(exp(r) u + b, 0) where u + g > 0, else 0, with a gate bias g, a log scale r and a magnitude bias b."""

    gate_bias: Float[Tensor, " m"]
    log_scale: Float[Tensor, " m"]
    magnitude_bias: Float[Tensor, " m"]

    def apply(self, products: Activations) -> Activations:
        magnitudes = (products * self.log_scale.exp() + self.magnitude_bias).relu()
        return magnitudes * (products + self.gate_bias > 0)

    def to(self, template: Tensor) -> "Gated":
        return Gated(self.gate_bias.to(template), self.log_scale.to(template), self.magnitude_bias.to(template))
