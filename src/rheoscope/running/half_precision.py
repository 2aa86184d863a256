"""Half precision ends at the border of a model: what leaves it is float32, and what is put back is rounded once.

A number of bfloat16 or float16 is one of float32 too, so nothing is lost on the way out: points, factors and projections are the
model's own, and every analysis computes with them in float32, as LAPACK and sums of squares need it. The model itself runs as it
is. Models in float32 or better pass as they are.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors, with_tensors
from rheoscope.running.stream import Description
from rheoscope.space.cross_attention import Crossing
from rheoscope.space.head import Heads, Norm, Projected
from rheoscope.space.model import LayerEdit
from rheoscope.space.safe_arithmetic import exact


@torch.no_grad()
def in_float32(description: Description) -> Description:
    """The same description, its matrices in float32 or better, its modules as maps from float32 to float32."""
    dtype = description.embed.weight.dtype
    if dtype.itemsize >= 4:
        return description
    return replace(
        description,
        blocks=tuple(_heads(heads, dtype) for heads in description.blocks),
        mlps=tuple(outside(mlp, dtype) for mlp in description.mlps),
        final_norm=_norm(description.final_norm, dtype),
        into=_matrix(description.into),
        out_of=_matrix(description.out_of),
        crossing=tuple(
            Crossing(_heads(cross.asking, dtype), _norm(cross.memory, dtype)) for cross in description.crossing
        ),
    )


def outside(own: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """A module of the model as those outside call it: rounded to the model's dtype on the way in, exact on the way out.

    What comes in the model's dtype stays in it: see `View.as_read`.

    >>> outside(torch.nn.Linear(2, 3).bfloat16(), torch.bfloat16)(torch.ones(1, 2)).dtype
    torch.float32
    """
    return lambda x: own(x) if x.dtype == dtype else exact(own(x.to(dtype)))


def rounded_once(change: LayerEdit) -> LayerEdit:
    """An edit of a layer that computes in float32 or better; what it gives is rounded to the model's dtype at the end."""

    def edit(q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, out: Tensor) -> Tensor:
        return change(exact(q), exact(k), exact(v), _mechanism(mechanism), exact(out)).to(out.dtype)

    return edit


def words_in_float32(embed: Tensor, unembed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Both tables in float32 or better; one that is the other's transpose stays so, and is held once."""
    table = _matrix(embed)
    assert table is not None
    if unembed is not None and unembed.data_ptr() == embed.data_ptr() and unembed.shape == embed.mT.shape:
        return table, table.mT
    return table, _matrix(unembed)


def _heads(heads: Heads, dtype: torch.dtype) -> Heads:
    def project(u: Tensor) -> Projected:
        q, k, v = heads.project(u.to(dtype))
        return (q, k, v) if u.dtype == dtype else (exact(q), exact(k), exact(v))

    matrices: dict[str, Any] = {
        name: _matrix(getattr(heads, name)) for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O")
    }
    own = {name: getattr(heads, name) for name in ("norm", "q_norm", "k_norm", "after")}
    norms: dict[str, Any] = {name: None if norm is None else _norm(norm, dtype) for name, norm in own.items()}
    return replace(
        heads,
        mechanism=_mechanism(heads.mechanism),
        project=project,
        gate=None if heads.gate is None else outside(heads.gate, dtype),
        **matrices,
        **norms,
    )


def _norm(norm: Norm, dtype: torch.dtype) -> Norm:
    if norm.eps is None:  # no norm at all: it rounds nothing
        return norm
    return replace(norm, own=outside(norm.own, dtype), gain=_matrix(norm.gain), bias=_matrix(norm.bias))


def _mechanism(mechanism: Mechanism) -> Mechanism:
    """The same with its own tensors in float32 or better."""
    half = {at: x for at, x in tensors(mechanism).items() if x.is_floating_point() and x.dtype.itemsize < 4}
    return with_tensors(mechanism, {at: exact(x) for at, x in half.items()})


def _matrix(x: Tensor | None) -> Tensor | None:
    return None if x is None else exact(x)
