"""Torch modules: `nn.Attention` trains a mechanism, `nn.MultiHeadAttention` adds the projections.

>>> import torch, rheoscope as rs
>>> layer = rs.nn.MultiHeadAttention(width=32, heads=4, kv_heads=2, mechanism="metric")
>>> layer(torch.randn(1, 5, 32), mask="causal").shape
torch.Size([1, 5, 32])
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.attention.cache import Cache
from rheoscope.attention.definition import MaskLike
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors_by_path, with_tensors
from rheoscope.attention.python_functions import python_functions
from rheoscope.attention.zoo import ZOO
from rheoscope.attention.zoo import mechanism as mechanism_by_name
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError

TokenStream = Float[Tensor, "b t width"]

__all__ = ["Attention", "Cache", "MultiHeadAttention"]


class Attention(nn.Module):
    """A mechanism with trainable tensors.

    **Formula** The formula of the mechanism. Every tensor inside it (a bilinear B, a map phi, a sink, a bias table, …) is
    a parameter named by its path. A module used as score or value map becomes a submodule.

    **Returns** forward(q, k, v) returns (b, h, m, e) for (b, h, m, d), (b, g, n, c) and (b, g, n, e).

    **See also** `Mechanism` is the same without parameters; `MultiHeadAttention` adds the projections.

    >>> import torch, rheoscope as rs
    >>> layer = rs.nn.Attention("bilinear", dim=8)
    >>> [name for name, _ in layer.named_parameters()]
    ['learned.score_phi_W']
    """

    def __init__(self, mechanism: Mechanism | str, **options: Any) -> None:
        super().__init__()
        mechanism = mechanism_by_name(mechanism, **options) if isinstance(mechanism, str) else mechanism
        parameters = {
            path: nn.Parameter(x.clone()) for path, x in tensors_by_path(mechanism).items() if x.is_floating_point()
        }
        self.learned = nn.ParameterDict({path.replace(".", "_"): x for path, x in parameters.items()})
        self.parameter_paths = {path.replace(".", "_"): path for path in parameters}
        self.functions = nn.ModuleList(f for f in python_functions(mechanism) if isinstance(f, nn.Module))
        self.mechanism = with_tensors(mechanism, parameters)

    def current_mechanism(self) -> Mechanism:
        """The mechanism with the current parameters, rebuilt only if a parameter was replaced."""
        parameters, mechanism_tensors = (
            {self.parameter_paths[name]: x for name, x in self.learned.items()},
            tensors_by_path(self.mechanism),
        )
        return (
            self.mechanism
            if all(mechanism_tensors[path] is x for path, x in parameters.items())
            else with_tensors(self.mechanism, parameters)
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: MaskLike = None) -> Tensor:
        return self.current_mechanism().attend(q, k, v, mask)

    def extra_repr(self) -> str:
        return f"score={type(self.mechanism.score).__name__}, normaliser={type(self.mechanism.normaliser).__name__}"


class MultiHeadAttention(nn.Module):
    """Multi-head attention with any mechanism: project to heads, attend, project back.

    **Formula** MultiHead(X) = concat_h( mechanism(X W_Q^h, X W_K^g, X W_V^g) ) W_O, with g = h // (heads / kv_heads).
    Queries and keys have width `head_width` (d_k), values have width `value_width` (d_v, by default d_k).

    **Returns** forward(x) returns (b, t, width) for x (b, t, width). With `context` (b, s, context_width) it is cross
    attention. With a `Cache` it is incremental, and x holds the new tokens.

    **Laws** It equals `torch.nn.MultiheadAttention` with the same weights. Cached and uncached outputs agree.

    >>> import torch, rheoscope as rs
    >>> layer = rs.nn.MultiHeadAttention(16, heads=4, mechanism="entmax15")
    >>> layer(torch.randn(2, 6, 16), mask="causal").shape
    torch.Size([2, 6, 16])
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        mechanism: Mechanism | str = "scaled_dot",
        head_width: int | None = None,
        context_width: int | None = None,
        bias: bool = False,
        value_width: int | None = None,
    ) -> None:
        super().__init__()
        kv_heads, head_width = kv_heads or heads, head_width or width // max(heads, 1)
        _check_heads(width, heads, kv_heads, head_width)
        value_width = value_width or head_width
        self.heads, self.kv_heads, self.head_width, self.value_width = heads, kv_heads, head_width, value_width
        self.W_Q = nn.Linear(width, heads * head_width, bias=bias)
        self.W_K = nn.Linear(context_width or width, kv_heads * head_width, bias=bias)
        self.W_V = nn.Linear(context_width or width, kv_heads * value_width, bias=bias)
        self.W_O = nn.Linear(heads * value_width, width, bias=bias)
        needs_dim = isinstance(mechanism, str) and mechanism in ZOO and ZOO[mechanism].needs_dim
        self.attention = Attention(mechanism, **({"dim": head_width} if needs_dim else {}))

    def forward(
        self, x: TokenStream, context: Tensor | None = None, mask: MaskLike = None, cache: Cache | None = None
    ) -> TokenStream:
        kv_source = x if context is None else context
        q, k = (_split_heads(rows, self.head_width) for rows in (self.W_Q(x), self.W_K(kv_source)))
        v = _split_heads(self.W_V(kv_source), self.value_width)
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.W_O(self.attention(q, k, v, mask).transpose(1, 2).flatten(2))


def _split_heads(rows: TokenStream, width: int) -> Float[Tensor, "b h t d"]:
    return rows.unflatten(-1, (-1, width)).transpose(1, 2)


def _check_heads(width: int, heads: int, kv_heads: int, head_width: int) -> None:
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise RheoscopeError(
            Message(
                "heads must be a multiple of kv_heads, both at least 1, got {heads} and {kv_heads}",
                heads=heads,
                kv_heads=kv_heads,
            ),
            Advice("heads=4, kv_heads=2"),
        )
    if head_width < 1:
        raise RheoscopeError(
            Message("width {width} is too small for {heads} heads", width=width, heads=heads), Advice("head_width=8")
        )
