"""The border: what comes from a user is looked at once, here, and refused in one line."""

import torch
from torch import Tensor

from rheoscope.attention.definition import Definition, for_every_head, positions, scores
from rheoscope.attention.parameters import tensors
from rheoscope.shapes import RheoscopeError


def check_finite(**tensors: Tensor) -> None:
    """Refuse NaN and infinity, naming the tensor and the first place. One fast pass when all is well."""
    if torch.compiler.is_compiling():
        return
    for name, x in tensors.items():
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.is_meta or _surely_finite(x):
            continue
        bad = ~x.isfinite()
        if not bool(bad.any()):  # only the sum was too large
            continue
        at = tuple(bad.nonzero()[0].tolist())
        raise RheoscopeError(
            f"{name} has {int(bad.sum())} values that are NaN or infinite, the first at {list(at)} ({x[at].item()}); "
            "attention needs finite numbers: look at what made it, or torch.nan_to_num(…)"
        )


def _surely_finite(x: Tensor) -> bool:
    """A finite sum means finite numbers; only a sum that overflows or meets a NaN is worth a second, exact look."""
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def check_call(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse shapes, dtypes, devices and masks for which the mechanism is not defined."""
    check_tensors(q, k, v)
    check_shapes(q, k, v)
    check_domain(mechanism, q.shape[-2], k.shape[-2])
    check_parts(mechanism, q, k, v)


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise RheoscopeError(f"{name} must be a torch.Tensor, got {type(x).__name__}; type torch.as_tensor({name})")
        if not x.is_floating_point():
            raise RheoscopeError(f"{name} must hold floating-point numbers, got {x.dtype}; type {name}.float()")
        if x.ndim != 4:
            raise RheoscopeError(
                f"{name} must have 4 axes (batch, heads, tokens, dim), got {x.ndim} of shape {tuple(x.shape)}; "
                f"for one unbatched head type {name}[None, None]"
            )
        if not x.numel():
            raise RheoscopeError(f"{name} is empty: shape {tuple(x.shape)}; attention needs at least one of every axis")
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        raise RheoscopeError(
            f"q, k, v must share dtype and device, got {q.dtype} on {q.device}, {k.dtype} on {k.device}, "
            f"{v.dtype} on {v.device}; type k.to(q), v.to(q)"
        )


def check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise RheoscopeError(
            f"q, k, v must share the batch, got {q.shape[0]}, {k.shape[0]}, {v.shape[0]}; type k.expand(…)"
        )
    if k.shape[1:3] != v.shape[1:3]:
        raise RheoscopeError(
            f"k and v must share heads and tokens, got {tuple(k.shape[1:3])} and {tuple(v.shape[1:3])}; every key has one value"
        )
    if q.shape[1] % k.shape[1]:
        raise RheoscopeError(
            f"query heads must be a multiple of key/value heads, got {q.shape[1]} and {k.shape[1]}; "
            "each key/value head serves the same number of query heads"
        )


def check_domain(mechanism: Definition, m: int, n: int) -> None:
    domain, what = mechanism.domain, type(mechanism.normaliser).__name__
    if domain.square and m != n:
        raise RheoscopeError(
            f"{what} is defined for square attention (as many queries as keys), got {m} queries and {n} keys; "
            "type mechanism('scaled_dot') for cross attention"
        )
    if not domain.masked and not mechanism.mask.forbids_nothing:
        raise RheoscopeError(
            f"{what} is defined without a mask, got {type(mechanism.mask).__name__}; "
            "type mask='none', or mechanism('scaled_dot') for masked attention"
        )


def check_parts(mechanism: Definition, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Tables of masks and positions must fit the call; parts that hold tensors are tried on one token of every head."""
    h, m, n = q.shape[1], q.shape[-2], k.shape[-2]
    mechanism.mask.fit(q.shape[0], h, m, n)
    for width in {q.shape[-1], k.shape[-1]}:
        mechanism.position.fit(q.shape[0], h, m, n, width)
    exact = torch.promote_types(q.dtype, torch.float32)  # as the reference computes; cdist knows no bfloat16
    mechanism.score.fit(q[:, :, -2:].to(exact), for_every_head(k[:, :, -2:].to(exact), h))
    if mechanism.is_dot_product or not tensors(mechanism):
        return
    (i, j), q1, k1 = positions(1, n, q.device), q[:, :, -1:].to(exact), for_every_head(k[:, :, -1:].to(exact), h)
    try:
        with torch.no_grad():
            at_q, at_k = mechanism.position.place(q1, i), mechanism.position.place(k1, j[-1:])
            mechanism.normaliser(scores(mechanism, at_q, at_k, i, j[-1:]))
            mechanism.value(for_every_head(v[:, :, -1:].to(exact), h))
    except (RuntimeError, IndexError) as error:
        sizes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in tensors(mechanism).items())
        raise RheoscopeError(
            f"the mechanism's own tensors ({sizes}) do not fit q of {h} heads, width {q.shape[-1]} and {n} keys"
            f"{_of_width(q, k)}: {str(error).splitlines()[0]}; type dim={q.shape[-1]}{_key_dim(q, k)}, and tensors for all "
            f"heads together or for {h}"
        ) from error


def _of_width(q: Tensor, k: Tensor) -> str:
    return "" if q.shape[-1] == k.shape[-1] else f" of width {k.shape[-1]}"


def _key_dim(q: Tensor, k: Tensor) -> str:
    return "" if q.shape[-1] == k.shape[-1] else f", key_dim={k.shape[-1]}"
