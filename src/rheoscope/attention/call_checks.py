"""Checks of the arguments of an attention call, each with a one-line error."""

import torch
from torch import Tensor

from rheoscope.attention.definition import Definition, masked_scores, query_key_positions, repeat_kv_heads
from rheoscope.attention.parameters import tensors_by_path
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message, plural
from rheoscope.shapes import RheoscopeError


def check_finite(**tensors: Tensor) -> None:
    """Raise on NaN and infinity, with the name of the tensor and the first index; one fast pass for valid input."""
    if torch.compiler.is_compiling():
        return
    for name, x in tensors.items():
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.is_meta or _is_finite(x):
            continue
        is_bad = ~x.isfinite()
        if not bool(is_bad.any()):  # only the sum overflowed
            continue
        index = tuple(is_bad.nonzero()[0].tolist())
        raise RheoscopeError(
            plural(
                "{name} must be finite, got {n} NaN or infinite value, at index {index} ({value})",
                "{name} must be finite, got {n} NaN or infinite values, the first at index {index} ({value})",
                n=int(is_bad.sum()),
                name=name,
                index=str(list(index)),
                value=x[index].item(),
            ),
            Advice(f"{name}.nan_to_num()"),
        )


def _is_finite(x: Tensor) -> bool:
    """Whether all values are finite. A finite sum implies it; otherwise every value is checked, as a sum may overflow."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def check_call(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise on shapes, dtypes, devices and masks for which the mechanism is not defined."""
    check_tensors(q, k, v)
    check_shapes(q, k, v)
    check_domain(mechanism, q.shape[-2], k.shape[-2])
    check_parts(mechanism, q, k, v)


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise RheoscopeError(
                Message("{name} must be a torch.Tensor, got {received}", name=name, received=type(x).__name__),
                Advice(f"torch.as_tensor({name})"),
            )
        if not x.is_floating_point():
            raise RheoscopeError(
                Message("{name} must have a floating-point dtype, got {dtype}", name=name, dtype=str(x.dtype)),
                Advice(f"{name}.float()"),
            )
        if x.ndim != 4:
            raise RheoscopeError(
                Message(
                    "{name} must have 4 axes (batch, heads, tokens, dim), got {n_axes} of shape {shape}",
                    name=name,
                    n_axes=x.ndim,
                    shape=str(tuple(x.shape)),
                ),
                Advice(f"{name}[{', '.join(['None'] * (4 - x.ndim))}]") if x.ndim in (2, 3) else None,
            )
        if not x.numel():
            raise RheoscopeError(
                Message("{name} must not be empty, got shape {shape}", name=name, shape=str(tuple(x.shape)))
            )
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        raise RheoscopeError(
            Message(
                "q, k and v must have the same dtype and device, got {q} on {q_device}, {k} on {k_device} and {v} on {v_device}",
                q=str(q.dtype),
                q_device=str(q.device),
                k=str(k.dtype),
                k_device=str(k.device),
                v=str(v.dtype),
                v_device=str(v.device),
            ),
            Advice("k.to(q), v.to(q)"),
        )


def check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise RheoscopeError(
            Message(
                "q, k and v must have the same batch size, got {q}, {k} and {v}",
                q=q.shape[0],
                k=k.shape[0],
                v=v.shape[0],
            )
        )
    if k.shape[1:3] != v.shape[1:3]:
        raise RheoscopeError(
            Message(
                "k and v must have the same numbers of heads and tokens, got {k} and {v}",
                k=str(tuple(k.shape[1:3])),
                v=str(tuple(v.shape[1:3])),
            )
        )
    if q.shape[1] % k.shape[1]:
        raise RheoscopeError(
            Message(
                "the number of query heads must be a multiple of the number of key/value heads, got {q} and {k}",
                q=q.shape[1],
                k=k.shape[1],
            )
        )


def check_domain(mechanism: Definition, m: int, n: int) -> None:
    domain, normaliser_name = mechanism.domain, type(mechanism.normaliser).__name__
    if domain.requires_square and m != n:
        raise RheoscopeError(
            Message(
                "{normaliser} needs square attention (as many queries as keys), got {m} queries and {n} keys",
                normaliser=normaliser_name,
                m=m,
                n=n,
            ),
            Advice("rs.mechanism('scaled_dot')"),
        )
    if not domain.allows_masks and not mechanism.mask.allows_all:
        raise RheoscopeError(
            Message(
                "{normaliser} does not support masks, got {mask}",
                normaliser=normaliser_name,
                mask=type(mechanism.mask).__name__,
            ),
            Advice("mask='none'"),
        )


def check_parts(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Check that masks and positions fit the call, and try the mechanism's own tensors on one token of every head."""
    h, m, n = q.shape[1], q.shape[-2], k.shape[-2]
    mechanism.mask.check_shapes(q.shape[0], h, m, n)
    for width in {q.shape[-1], k.shape[-1]}:
        mechanism.position.check_shapes(q.shape[0], h, m, n, width)
    compute_dtype = torch.promote_types(q.dtype, torch.float32)  # as in the reference; cdist does not support bfloat16
    mechanism.score.check_shapes(q[:, :, -2:].to(compute_dtype), repeat_kv_heads(k[:, :, -2:].to(compute_dtype), h))
    if mechanism.is_dot_product or not tensors_by_path(mechanism):
        return
    (i, j), last_q, last_k = (
        query_key_positions(1, n, q.device),
        q[:, :, -1:].to(compute_dtype),
        repeat_kv_heads(k[:, :, -1:].to(compute_dtype), h),
    )
    try:
        with torch.no_grad():
            encoded_q, encoded_k = mechanism.position.encode(last_q, i), mechanism.position.encode(last_k, j[-1:])
            mechanism.normaliser(masked_scores(mechanism, encoded_q, encoded_k, i, j[-1:]))
            mechanism.value(repeat_kv_heads(v[:, :, -1:].to(compute_dtype), h))
    except (RuntimeError, IndexError) as error:
        same_width = q.shape[-1] == k.shape[-1]
        raise RheoscopeError(
            Message(
                "the mechanism's tensors ({tensors}) do not fit {heads} heads, queries of width {q} and keys of width {k}: "
                "{error}",
                tensors=", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors_by_path(mechanism).items()),
                heads=h,
                q=q.shape[-1],
                k=k.shape[-1],
                error=str(error).splitlines()[0],
            ),
            Advice(f"dim={q.shape[-1]}" if same_width else f"dim={q.shape[-1]}, key_dim={k.shape[-1]}"),
        ) from error
