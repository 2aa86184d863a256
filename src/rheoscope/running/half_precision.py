"""Half-precision models with a float32 interface: outputs are widened, and inputs are rounded once.

Every bfloat16 or float16 number is a float32 number, so widening loses nothing: points, factors and projections are the
model's own. Analyses compute in float32, which LAPACK and sums of squares need. The model itself runs in its own dtype. Models
in float32 or better are unchanged.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors_by_path, with_tensors
from rheoscope.running.stream import ModelDescription
from rheoscope.space.cross_attention import CrossHeads
from rheoscope.space.head import Heads
from rheoscope.space.model import LayerEdit
from rheoscope.space.model_parts import Norm, Projected
from rheoscope.space.safe_arithmetic import at_least_float32


@torch.no_grad()
def description_in_float32(description: ModelDescription) -> ModelDescription:
    """The same description with matrices in float32 or better, and modules that map float32 to float32."""
    dtype = description.embedding.weight.dtype
    if dtype.itemsize >= 4:
        return description
    return replace(
        description,
        layer_heads=tuple(_heads_in_float32(heads, dtype) for heads in description.layer_heads),
        mlps=tuple(with_float32_io(mlp, dtype) for mlp in description.mlps),
        final_norm=_norm_in_float32(description.final_norm, dtype),
        embed_projection=_float32_or_none(description.embed_projection),
        unembed_projection=_float32_or_none(description.unembed_projection),
        prediction_head=None
        if description.prediction_head is None
        else with_float32_io(description.prediction_head, dtype),
        cross_heads=tuple(
            CrossHeads(
                _heads_in_float32(cross_heads.target_heads, dtype), _norm_in_float32(cross_heads.source_norm, dtype)
            )
            for cross_heads in description.cross_heads
        ),
    )


def with_float32_io(module: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A module with a float32 interface: the input is rounded to the model's dtype, the output is widened exactly.

    Input in the model's dtype stays in it: see `View.to_model_precision`.

    >>> with_float32_io(torch.nn.Linear(2, 3).bfloat16(), torch.bfloat16)(torch.ones(1, 2)).dtype
    torch.float32
    """
    return lambda x: module(x) if x.dtype == dtype else at_least_float32(module(x.to(dtype)))


def edit_in_float32(layer_edit: LayerEdit) -> LayerEdit:
    """A layer edit that computes in float32 or better; its output is rounded to the model's dtype at the end."""

    def float32_edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return layer_edit(
            at_least_float32(q),
            at_least_float32(k),
            at_least_float32(v),
            _mechanism_in_float32(mechanism),
            at_least_float32(out),
        ).to(out.dtype)

    return float32_edit


def embeddings_in_float32(embed: Tensor, unembed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Both tables in float32 or better. Tied tables stay tied and are stored once."""
    table = _float32_or_none(embed)
    assert table is not None
    if unembed is not None and unembed.data_ptr() == embed.data_ptr() and unembed.shape == embed.mT.shape:
        return table, table.mT
    return table, _float32_or_none(unembed)


def _heads_in_float32(heads: Heads, dtype: torch.dtype) -> Heads:
    def project(u: Tensor) -> Projected:
        q, k, v = heads.project(u.to(dtype))
        return (q, k, v) if u.dtype == dtype else (at_least_float32(q), at_least_float32(k), at_least_float32(v))

    matrices: dict[str, Any] = {
        name: _float32_or_none(getattr(heads, name))
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")
    }
    original_norms = {name: getattr(heads, name) for name in ("norm", "q_norm", "k_norm", "v_norm", "output_norm")}
    norms: dict[str, Any] = {
        name: None if norm is None else _norm_in_float32(norm, dtype) for name, norm in original_norms.items()
    }
    return replace(
        heads,
        mechanism=_mechanism_in_float32(heads.mechanism),
        project=project,
        gate=None if heads.gate is None else with_float32_io(heads.gate, dtype),
        **matrices,
        **norms,
    )


def _norm_in_float32(norm: Norm, dtype: torch.dtype) -> Norm:
    if norm.eps is None:  # no norm, so no rounding
        return norm
    return replace(
        norm,
        apply=with_float32_io(norm.apply, dtype),
        gain=_float32_or_none(norm.gain),
        bias=_float32_or_none(norm.bias),
    )


def _mechanism_in_float32(mechanism: Mechanism) -> Mechanism:
    """The same mechanism with its tensors in float32 or better."""
    half_tensors = {
        name: x for name, x in tensors_by_path(mechanism).items() if x.is_floating_point() and x.dtype.itemsize < 4
    }
    return with_tensors(mechanism, {name: at_least_float32(x) for name, x in half_tensors.items()})


def _float32_or_none(x: Tensor | None) -> Tensor | None:
    return None if x is None else at_least_float32(x)
