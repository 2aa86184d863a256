"""Any Python function as a score f(q, k) or a value map g(v): `Mechanism(score=f, value=g)`.

A function is given all tokens of all heads at once, and treats them one by one:

    f(q, k)   q (b, h, m, d), k (b, h, n, c) to scores (b, h, m, n); entry ij depends on q_i and k_j alone
    g(v)      v (b, h, n, e) to values (b, h, n, r); row j depends on v_j alone

Everything inside is differentiated by autograd, tensors that the function reads from elsewhere too (a module's
parameters, say). What a function computes nobody can know without calling it, so no fused kernel takes a score from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from rheoscope.attention.feature_maps import Feature, Mapped, Rows
from rheoscope.attention.feature_maps import Pulled as FeaturePulled
from rheoscope.attention.score import Flops, Pulled, Score
from rheoscope.shapes import Keys, Queries, RheoscopeError, Scores

PAIR_ROUNDING = 1e-4
"""How far, relative to the largest, a score may move with other rows beside it before the function is said to mix them."""


def as_score(f: Any) -> Score:
    """A score as it is, a Python function as the score that calls it.

    >>> as_score(lambda q, k: -torch.cdist(q, k, p=1)).bilinear is None
    True
    """
    if not isinstance(f, Score) and not callable(f):
        raise RheoscopeError(
            f"score must be a Score or a function f(q, k), got {type(f).__name__}; type score=lambda q, k: q @ k.mT"
        )
    return f if isinstance(f, Score) else ScoreFunction(f)


def as_value(g: Any) -> Feature:
    """A value map as it is, a Python function as the value map that calls it.

    >>> as_value(torch.tanh).identity
    False
    """
    if not isinstance(g, Feature) and not callable(g):
        raise RheoscopeError(
            f"value must be a Feature or a function g(v), got {type(g).__name__}; type value=lambda v: v"
        )
    return g if isinstance(g, Feature) else ValueFunction(g)


def named(f: Callable[..., Any]) -> str:
    return f"the Python function {getattr(f, '__name__', type(f).__name__)}"


@dataclass(frozen=True, eq=False)
class ScoreFunction(Score):
    """f(q, k), whatever it is: all queries and keys in, all scores out, entry ij from q_i and k_j alone.

    >>> ScoreFunction(lambda q, k: q @ k.mT)(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 4, 3)).shape
    torch.Size([1, 1, 2, 4])
    """

    f: Callable[[Tensor, Tensor], Tensor]

    bilinear = None
    linear_in_keys = False
    opaque = True

    def __call__(self, q: Queries, k: Keys) -> Scores:
        return _checked(self.f(q, k), (*q.shape[:-1], k.shape[-2]), self.f, "scores of all queries and keys").to(
            q.dtype
        )

    def pull(self, q: Queries, k: Keys, r: Scores) -> Pulled:
        dq, dk = _pulled(self, (q, k), r)
        return dq, dk, {}

    def fit(self, q: Tensor, k: Tensor) -> None:
        """Any two widths, as long as the function takes them; a pair alone must get the score that it gets among others."""
        _tried(self, q[..., -1:, :], k[..., -1:, :])
        if torch.compiler.is_compiling() or q.is_meta:
            return
        with torch.no_grad():
            among, alone = self(q, k)[..., :1, :1], self(q[..., :1, :], k[..., :1, :])
        if not bool(among.isfinite().all()):
            return  # a plan may be asked for with tensors that hold nothing yet
        if not torch.allclose(among, alone, PAIR_ROUNDING, PAIR_ROUNDING * float(among.abs().max())):
            raise RheoscopeError(
                f"a score of q_i and k_j must depend on them alone, {named(self.f)} gives another one when other rows stand "
                "beside them; type q @ k.mT or torch.cdist(q, k) for what all pairs have, and no mean over rows"
            )

    @property
    def why_no_dot(self) -> str:
        return f"the score is {named(self.f)}, into which a kernel cannot look"

    def of_heads(self, some: list[int]) -> "ScoreFunction":
        """Itself: a function treats all heads alike."""
        return self

    def scaled(self, by: float) -> "ScoreFunction":
        return self

    def flops(self, d: int) -> Flops:
        raise _uncounted(self.f)


@dataclass(frozen=True, eq=False)
class ValueFunction(Feature):
    """g(v), whatever it is: all values in, all mapped values out, row j from v_j alone.

    >>> ValueFunction(torch.tanh)(torch.zeros(1, 1, 2, 3)).sum().item()
    0.0
    """

    g: Callable[[Tensor], Tensor]

    linear = False

    def __call__(self, x: Rows) -> Mapped:
        y = self.g(x)
        return _checked(y, (*x.shape[:-1], *getattr(y, "shape", (0,))[-1:]), self.g, "a row for each value").to(x.dtype)

    def pull(self, x: Rows, dy: Mapped) -> FeaturePulled:
        return _pulled(self, (x,), dy)[0], {}

    def of_heads(self, some: list[int]) -> "ValueFunction":
        """Itself: a function treats all heads alike."""
        return self

    def width(self, d: int) -> int:
        return self(torch.zeros(1, 1, 1, d)).shape[-1]

    @property
    def flops(self) -> int:
        raise _uncounted(self.g)


def _checked(y: Any, shape: tuple[int, ...], f: Callable[..., Any], what: str) -> Tensor:
    if isinstance(y, Tensor) and y.shape == shape and y.is_floating_point():
        return y
    came = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
    raise RheoscopeError(
        f"{named(f)} must give {what}, floating-point numbers of shape {shape}, got {came}; it gets tensors "
        "(batch, heads, tokens, width): type lambda q, k: q @ k.mT for a score, lambda v: v.tanh() for a value map"
    )


def _tried(score: ScoreFunction, q: Tensor, k: Tensor) -> None:
    try:
        with torch.no_grad():
            score(q, k)
    except (RuntimeError, IndexError, TypeError) as error:
        raise RheoscopeError(
            f"{named(score.f)} fails on q of shape {tuple(q.shape)} and k of shape {tuple(k.shape)}: "
            f"{str(error).splitlines()[0]}; it must take any number of queries and keys of these widths"
        ) from error


def _pulled(part: Callable[..., Tensor], inputs: tuple[Tensor, ...], dy: Tensor) -> list[Tensor]:
    """The gradient dy taken back to the inputs by autograd; 0 where the function does not read one."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        y = part(*leaves)
    if not y.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad(y, leaves, dy, allow_unused=True)
    return [torch.zeros_like(x) if one is None else one for x, one in zip(leaves, found, strict=True)]


def _uncounted(f: Callable[..., Any]) -> RheoscopeError:
    return RheoscopeError(
        f"what {named(f)} costs is not known; type torch.utils.flop_counter.FlopCounterMode() around a call"
    )


def functions(value: Any) -> list[Callable[..., Any]]:
    """Every Python function inside a nested frozen value.

    >>> functions(ValueFunction(torch.tanh)) == [torch.tanh]
    True
    """
    if isinstance(value, ScoreFunction):
        return [value.f]
    if isinstance(value, ValueFunction):
        return [value.g]
    parts = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else []
    return [f for part in parts for f in functions(part)]
