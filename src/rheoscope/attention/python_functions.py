"""Python functions as scores f(q, k) and value maps g(v): `Mechanism(score=f, value=g)`.

A function receives all tokens of all heads at once and must treat them independently:

    f(q, k)   q (b, h, m, d), k (b, h, n, c) to scores (b, h, m, n); entry ij depends only on q_i and k_j
    g(v)      v (b, h, n, e) to values (b, h, n, r); row j depends only on v_j

Autograd differentiates the function, including tensors that it captures (for example the parameters of a module). A
fused kernel cannot inspect a Python function, so none runs such a score.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from rheoscope.attention.feature_maps import Feature, MappedRows, Rows
from rheoscope.attention.feature_maps import Pullback as FeaturePullback
from rheoscope.attention.score import Flops, Pullback, Score
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import Keys, Queries, RheoscopeError, Scores

PAIR_TOLERANCE = 1e-4
"""Relative change of a score, when other rows are present, above which the function counts as mixing rows."""


def as_score(f: Any) -> Score:
    """A score unchanged, or a Python function wrapped as a score.

    >>> as_score(lambda q, k: -torch.cdist(q, k, p=1)).bilinear_maps is None
    True
    """
    if not isinstance(f, Score) and not callable(f):
        raise RheoscopeError(
            Message("score must be a Score or a function f(q, k), got {received}", received=type(f).__name__),
            Advice("score=lambda q, k: q @ k.mT"),
        )
    return f if isinstance(f, Score) else ScoreFunction(f)


def as_value(g: Any) -> Feature:
    """A value map unchanged, or a Python function wrapped as a value map.

    >>> as_value(torch.tanh).is_identity
    False
    """
    if not isinstance(g, Feature) and not callable(g):
        raise RheoscopeError(
            Message("value must be a Feature or a function g(v), got {received}", received=type(g).__name__),
            Advice("value=lambda v: v"),
        )
    return g if isinstance(g, Feature) else ValueFunction(g)


def function_name(f: Callable[..., Any]) -> str:
    return str(getattr(f, "__name__", type(f).__name__))


@dataclass(frozen=True, eq=False)
class ScoreFunction(Score):
    """A Python function f(q, k) from all queries and keys to all scores; entry ij depends only on q_i and k_j.

    >>> ScoreFunction(lambda q, k: q @ k.mT)(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 4, 3)).shape
    torch.Size([1, 1, 2, 4])
    """

    f: Callable[[Tensor, Tensor], Tensor]

    bilinear_maps = None
    is_linear_in_keys = False
    is_opaque = True

    def __call__(self, q: Queries, k: Keys) -> Scores:
        s, shape = self.f(q, k), (*q.shape[:-1], k.shape[-2])
        if not _is_float_tensor(s, shape):
            raise RheoscopeError(
                Message(
                    "the Python function {function} must return a score for every query and key, "
                    "floating-point numbers of shape {expected}, got {received}",
                    function=function_name(self.f),
                    expected=str(shape),
                    received=_describe_output(s),
                ),
                Advice("score=lambda q, k: q @ k.mT"),
            )
        return s.to(q.dtype)

    def pullback(self, q: Queries, k: Keys, r: Scores) -> Pullback:
        dq, dk = _autograd_pullback(self, (q, k), r)
        return dq, dk, {}

    def check_shapes(self, q: Tensor, k: Tensor) -> None:
        """Accept any two widths that the function accepts; a pair must score the same alone and among other tokens."""
        _check_runs(self, q[..., -1:, :], k[..., -1:, :])
        if torch.compiler.is_compiling() or q.is_meta:
            return
        with torch.no_grad():
            score_in_batch, score_alone = self(q, k)[..., :1, :1], self(q[..., :1, :], k[..., :1, :])
        if not bool(score_in_batch.isfinite().all()):
            return  # a plan may be requested with uninitialised tensors
        if not torch.allclose(
            score_in_batch, score_alone, PAIR_TOLERANCE, PAIR_TOLERANCE * float(score_in_batch.abs().max())
        ):
            raise RheoscopeError(
                Message(
                    "a score must depend only on q_i and k_j, but the result of the Python function {function} changes "
                    "when other rows are present",
                    function=function_name(self.f),
                ),
                Advice("score=lambda q, k: q @ k.mT"),
            )

    @property
    def no_dot_form_reason(self) -> str:
        if torch.compiler.is_compiling():  # Dynamo cannot trace a Message
            return "the score is a Python function"
        return Message(
            "the score is the Python function {function}, which a fused kernel cannot inspect",
            function=function_name(self.f),
        )

    def select_heads(self, heads: list[int]) -> "ScoreFunction":
        """The same function: it treats all heads alike."""
        return self

    def with_model_scale(self, scale: float) -> "ScoreFunction":
        return self

    def flops(self, d: int) -> Flops:
        raise _unknown_flops_error(self.f)


@dataclass(frozen=True, eq=False)
class ValueFunction(Feature):
    """A Python function g(v) from all values to all mapped values; row j depends only on v_j.

    >>> ValueFunction(torch.tanh)(torch.zeros(1, 1, 2, 3)).sum().item()
    0.0
    """

    g: Callable[[Tensor], Tensor]

    is_linear = False

    def __call__(self, x: Rows) -> MappedRows:
        y = self.g(x)
        shape = (*x.shape[:-1], *getattr(y, "shape", (0,))[-1:])
        if not _is_float_tensor(y, shape):
            raise RheoscopeError(
                Message(
                    "the Python function {function} must return one row per value, floating-point numbers of shape "
                    "{expected}, got {received}",
                    function=function_name(self.g),
                    expected=f"({', '.join(map(str, x.shape[:-1]))}, r)",
                    received=_describe_output(y),
                ),
                Advice("value=lambda v: v.tanh()"),
            )
        return y.to(x.dtype)

    def pullback(self, x: Rows, dy: MappedRows) -> FeaturePullback:
        return _autograd_pullback(self, (x,), dy)[0], {}

    def select_heads(self, heads: list[int]) -> "ValueFunction":
        """The same function: it treats all heads alike."""
        return self

    def output_width(self, d: int) -> int:
        return self(torch.zeros(1, 1, 1, d)).shape[-1]

    @property
    def flops(self) -> int:
        raise _unknown_flops_error(self.g)


def _is_float_tensor(output: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(output, Tensor) and output.shape == shape and output.is_floating_point()


def _describe_output(output: Any) -> str:
    if not isinstance(output, Tensor):
        return type(output).__name__
    return Message("{dtype} of shape {shape}", dtype=str(output.dtype), shape=str(tuple(output.shape)))


def _check_runs(score: ScoreFunction, q: Tensor, k: Tensor) -> None:
    try:
        with torch.no_grad():
            score(q, k)
    except (RuntimeError, IndexError, TypeError) as error:
        raise RheoscopeError(
            Message(
                "the Python function {function} must accept any number of queries and keys, but fails on q of shape {q} "
                "and k of shape {k}: {error}",
                function=function_name(score.f),
                q=str(tuple(q.shape)),
                k=str(tuple(k.shape)),
                error=str(error).splitlines()[0],
            ),
            Advice("score=lambda q, k: q @ k.mT"),
        ) from error


def _autograd_pullback(part: Callable[..., Tensor], inputs: tuple[Tensor, ...], dy: Tensor) -> list[Tensor]:
    """The gradients of the inputs by autograd, from the gradient dy of the output; 0 for an unused input."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        y = part(*leaves)
    if not y.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    gradients = torch.autograd.grad(y, leaves, dy, allow_unused=True)
    return [
        torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(leaves, gradients, strict=True)
    ]


def _unknown_flops_error(f: Callable[..., Any]) -> RheoscopeError:
    return RheoscopeError(
        Message("the FLOPs of the Python function {function} are unknown", function=function_name(f)),
        Advice("with torch.utils.flop_counter.FlopCounterMode(): mechanism(q, k, v)"),
    )


def python_functions(value: Any) -> list[Callable[..., Any]]:
    """Every Python function inside a nested frozen dataclass.

    >>> python_functions(ValueFunction(torch.tanh)) == [torch.tanh]
    True
    """
    if isinstance(value, ScoreFunction):
        return [value.f]
    if isinstance(value, ValueFunction):
        return [value.g]
    parts = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else []
    return [f for part in parts for f in python_functions(part)]
