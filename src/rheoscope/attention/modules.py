"""Mechanisms as torch modules: `nn.Attention` trains the tensors of a mechanism, `nn.MultiHeadAttention` is the layer.

>>> import torch, rheoscope as rs
>>> layer = rs.nn.MultiHeadAttention(width=32, heads=4, kv_heads=2, mechanism="metric")
>>> layer(torch.randn(1, 5, 32), mask="causal").shape
torch.Size([1, 5, 32])
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from rheoscope.attention.cache import Cache
from rheoscope.attention.definition import Masked
from rheoscope.attention.mechanism import Mechanism
from rheoscope.attention.parameters import tensors, with_tensors
from rheoscope.attention.python_functions import functions
from rheoscope.attention.zoo import ZOO
from rheoscope.attention.zoo import mechanism as named
from rheoscope.shapes import RheoscopeError

Stream = Float[Tensor, "b t width"]

__all__ = ["Attention", "Cache", "MultiHeadAttention"]


class Attention(nn.Module):
    """A mechanism whose tensors are trained.

    **Formula** that of the mechanism; every tensor inside it (a bilinear B, a map phi, a sink, a bias table, …) is a
    parameter named by its path, and a module that is its score or its value map is a part of this one.

    **Shapes** forward(q, k, v) on (b, h, m, d), (b, g, n, c), (b, g, n, e) gives (b, h, m, e).

    **Siblings** `Mechanism` is the same without parameters; `MultiHeadAttention` adds the projections.

    >>> import torch, rheoscope as rs
    >>> layer = rs.nn.Attention("bilinear", dim=8)
    >>> [name for name, _ in layer.named_parameters()]
    ['learned.score_phi_W']
    """

    def __init__(self, mechanism: Mechanism | str, **options: Any) -> None:
        super().__init__()
        mechanism = named(mechanism, **options) if isinstance(mechanism, str) else mechanism
        held = {path: nn.Parameter(x.clone()) for path, x in tensors(mechanism).items() if x.is_floating_point()}
        self.learned = nn.ParameterDict({path.replace(".", "_"): x for path, x in held.items()})
        self.paths = {path.replace(".", "_"): path for path in held}
        self.functions = nn.ModuleList(f for f in functions(mechanism) if isinstance(f, nn.Module))
        self.mechanism = with_tensors(mechanism, held)

    def current(self) -> Mechanism:
        """The mechanism with the parameters as they are now: made anew only where other ones have been put in their places."""
        now, held = {self.paths[name]: x for name, x in self.learned.items()}, tensors(self.mechanism)
        return self.mechanism if all(held[path] is x for path, x in now.items()) else with_tensors(self.mechanism, now)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Masked = None) -> Tensor:
        return self.current().attend(q, k, v, mask)

    def extra_repr(self) -> str:
        return f"score={type(self.mechanism.score).__name__}, normaliser={type(self.mechanism.normaliser).__name__}"


class MultiHeadAttention(nn.Module):
    """Attention over a stream of tokens: project to heads, attend by any mechanism, project back.

    **Formula** MultiHead(X) = concat_h( mechanism(X W_Q^h, X W_K^g, X W_V^g) ) W_O, with g = h // (heads / kv_heads).
    Queries and keys have `head_width` (d_k), values `value_width` (d_v, as d_k where it is not given).

    **Shapes** x (b, t, width) gives (b, t, width); `context` (b, s, context_width) makes it cross attention; a `Cache`
    makes it incremental: the new tokens are the last ones.

    **Laws** equal to `torch.nn.MultiheadAttention` with the same weights; cached and uncached outputs agree.

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
        wants_dim = isinstance(mechanism, str) and mechanism in ZOO and ZOO[mechanism].needs_dim
        self.attention = Attention(mechanism, **({"dim": head_width} if wants_dim else {}))

    def forward(
        self, x: Stream, context: Tensor | None = None, mask: Masked = None, cache: Cache | None = None
    ) -> Stream:
        source = x if context is None else context
        q, k = (_apart(rows, self.head_width) for rows in (self.W_Q(x), self.W_K(source)))
        v = _apart(self.W_V(source), self.value_width)
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.W_O(self.attention(q, k, v, mask).transpose(1, 2).flatten(2))


def _apart(rows: Stream, width: int) -> Float[Tensor, "b h t d"]:
    return rows.unflatten(-1, (-1, width)).transpose(1, 2)


def _check_heads(width: int, heads: int, kv_heads: int, head_width: int) -> None:
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise RheoscopeError(f"heads must be a multiple of kv_heads, both at least 1, got {heads} and {kv_heads}")
    if head_width < 1:
        raise RheoscopeError(f"width {width} is too small for {heads} heads; type head_width=<width of one head>")
