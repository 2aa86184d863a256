"""How one layer of attention was interpreted: its heads, the order of its block, its rotation, and where its matrices live."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rheoscope.running.encoder_decoder import EncoderDecoder
from rheoscope.running.matrix_locations import matrix_locations
from rheoscope.running.part_formulas import position_kind, window_size
from rheoscope.running.rotation_pattern import RotationPattern, rotation_pattern
from rheoscope.running.runner import RunnableModel
from rheoscope.running.stream import ModelDescription, Tap
from rheoscope.space.head import Heads
from rheoscope.space.heads_norm import HeadsNorm
from rheoscope.space.model_parts import LatentNorm, Norm, NormAcrossHeads

BlockOrder = Literal[
    "sequential", "parallel", "post-norm", "mixed streams", "cross-attention", "post-norm cross-attention"
]
"""Attention, then MLP; both from the same points; each followed by a norm; attention, then a mix of several streams; attention to the
encoder, without a norm or with one."""


@dataclass(frozen=True, eq=False)
class LayerStructure:
    """The attention of one layer.

    `kind` is "decoder", "encoder", or "cross" for attention from decoder to encoder. `source_norm` is the norm of the points that
    keys and values read, if it differs from that of queries (cross-attention). `locations` are the parameters that hold each
    matrix. `gate` is "none", "head" (one factor per head) or "coordinate" (one per coordinate of the values).
    """

    kind: str
    layer: int
    heads: Heads
    order: BlockOrder
    locations: Mapping[str, str]
    rotation: RotationPattern | None = None
    source_norm: Norm | None = None
    gate: str = "none"

    def fields(self) -> dict[str, Any]:
        """Everything but the formulas and the locations, as numbers and words."""
        heads, rotation, mechanism = self.heads, self.rotation, self.heads.mechanism
        sink = getattr(mechanism.normaliser, "sink", None)
        return {
            "kind": self.kind,
            "block": self.order,
            "heads": heads.n_heads,
            "kv_heads": len(heads.W_K),
            "head_width": heads.W_Q.shape[-1],
            "value_width": heads.W_V.shape[-1],
            "norm": norm_kind(heads.norm),
            "norm_eps": norm_eps(heads.norm),
            "query_norm": norm_kind(heads.q_norm),
            "key_norm": norm_kind(heads.k_norm),
            "value_norm": norm_kind(heads.v_norm),
            "heads_norm": norm_kind(heads.heads_norm),
            "output_norm": norm_kind(heads.output_norm),
            "scale": float(heads.scale),
            "cap": float(getattr(mechanism.score, "cap", float("nan"))),
            "position": position_kind(mechanism.position),
            "rotation_pairs": "none" if rotation is None else rotation.pairs,
            "rotation_start": 0 if rotation is None else rotation.start,
            "rotation_stop": 0 if rotation is None else rotation.stop,
            "rotation_scale": 1.0 if rotation is None else rotation.scale,
            "causal": not _sees_future(heads),
            "window": window_size(mechanism.mask),
            "normaliser": type(mechanism.normaliser).__name__.lower(),
            "sink": sink is not None,
            "gate": self.gate,
        }

    def biases(self) -> dict[str, bool]:
        """Which of the four projections have a bias."""
        return {f"W_{letter}": getattr(self.heads, f"b_{letter}") is not None for letter in "QKVO"}


def norm_kind(norm: Norm | HeadsNorm | None) -> str:
    """A norm in one or two words.

    >>> norm_kind(None), norm_kind(Norm(eps=1e-6)), norm_kind(Norm(eps=1e-5, subtracts_mean=True))
    ('none', 'RMSNorm', 'LayerNorm')
    """
    if norm is None or norm.eps is None:
        return "none"
    kind = "LayerNorm" if norm.subtracts_mean else "RMSNorm"
    if isinstance(norm, LatentNorm):
        return f"{kind} of latent vector"
    return f"{kind} across heads" if isinstance(norm, NormAcrossHeads) else kind


def norm_eps(norm: Norm | None) -> float:
    """The eps of a norm; NaN without one."""
    return float("nan") if norm is None or norm.eps is None else float(norm.eps)


def layer_structures(model: RunnableModel) -> Iterator[LayerStructure]:
    """Every layer of attention of a model: of its encoder first, then self-attention and cross-attention of each layer."""
    if isinstance(model, EncoderDecoder):
        yield from _stack(model.network, model.source_description, "encoder")
    yield from _stack(model.network, model.description, "encoder" if model.description.is_encoder else "decoder")
    yield from _cross_layers(model.network, model.description)


def _cross_layers(network: nn.Module, description: ModelDescription) -> Iterator[LayerStructure]:
    for layer, cross in enumerate(description.cross_heads):
        has_norm = any(tap.step.kind == "cross_sum" for tap in description.layer_taps[layer])
        module = description.cross_attention_modules[layer]
        yield LayerStructure(
            "cross",
            layer,
            cross.target_heads,
            "post-norm cross-attention" if has_norm else "cross-attention",
            matrix_locations(network, cross.target_heads, module),
            source_norm=cross.source_norm,
        )


def _stack(network: nn.Module, description: ModelDescription, kind: str) -> Iterator[LayerStructure]:
    for layer, heads in enumerate(description.layer_heads):
        taps = description.layer_taps[layer]
        projection = description.output_projections[layer]
        yield LayerStructure(
            kind,
            layer,
            heads,
            block_order(taps),
            matrix_locations(network, heads, projection),
            rotation_pattern(heads.mechanism.position, heads.W_Q.shape[-1], heads.W_Q.device),
            gate=gate_kind(heads),
        )


def block_order(taps: tuple[Tap, ...]) -> BlockOrder:
    """The order of attention and MLP in a layer, by its hook points."""
    if taps[0].is_displacement:
        return "parallel" if taps[0].is_virtual else "mixed streams"
    return "post-norm" if taps[0].step.is_sum else "sequential"


@torch.no_grad()
def gate_kind(heads: Heads) -> str:
    """Whether a gate has a factor for every head or for every coordinate of its values."""
    if heads.gate is None:
        return "none"
    token: Tensor = torch.zeros(1, 1, heads.W_Q.shape[-2], device=heads.W_Q.device, dtype=heads.W_Q.dtype)
    return "head" if heads.gate(token).shape[-1] == 1 else "coordinate"


def _sees_future(heads: Heads) -> bool:
    first, second = (torch.tensor([position], device=heads.W_Q.device) for position in (0, 1))
    return bool(heads.mechanism.mask(first, second).any())
