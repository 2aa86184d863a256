"""Does attention, followed through all layers, say where a token's last place comes from? Rollout against the Jacobian."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from rheoscope.covers.fixed_point import block, jacobian
from rheoscope.covers.reading import provenance
from rheoscope.covers.scores import permitted
from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset
from rheoscope.space.head import Heads, of_head
from rheoscope.space.model import Model
from rheoscope.space.ranks import ranked
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "rollout": "share of each token in the query's row of the product over layers of ½(mean weights of the heads) + ½ identity",
    "jacobian": "share of each token in ‖∂x_query/∂x_j‖, from the embeddings to the last points: what really flows, to first order "
    "(by probes drawn in the basis of E, which move it within their error)",
    "correlation": "Spearman correlation of rollout and jacobian, basis-dependent as it is, over the tokens that the query can see, itself "
    "left out",
    "correlation_null": "the same (basis-dependent) for a rollout of equal weights on all permitted keys: what the mask alone explains",
}


@torch.no_grad()
def rollout(model: Model, trace: Trace, query: int = -1, probes: int = 16, seed: int = 0) -> "xarray.Dataset":
    """Where the last place of a token comes from: by attention rollout, and by the true derivative.

    **Answers** "may I read attention, multiplied through the layers, as a flow from tokens to tokens?"

    **Formula** rollout: Π_ℓ ½(Ā_ℓ + I), Ā the mean over heads. Jacobian: the Frobenius norm of ∂x^L_query/∂x^0_j through
    heads, norms and MLPs, by random probes of x^L_query.

    **Gives** (token): `rollout`, `jacobian`, each adding up to 1; scalars `correlation`, `correlation_null`.

    **Laws** both vanish on tokens that the query cannot see; a layer of Markov kernels stays one.

    **Source** Abnar and Zuidema, arXiv:2005.00928.

    **Siblings** `path_weights` follows single heads; `fixed_point` has the Jacobian of single layers.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> found = rs.rollout(model, model.trace("The keys to the cabinet are on the table"))
    >>> round(float(found.rollout.sum()), 4), round(float(found.jacobian.sum()), 4)
    (1.0, 1.0)
    """
    n = len(trace)
    if not -n <= query < n or probes < 1:
        raise RheoscopeError(
            f"the query is one of the {n} tokens and there is 1 probe or more, got query={query}, probes={probes}; "
            "type query=-1, probes=16"
        )
    query = query % n
    rolled = {name: torch.eye(n, dtype=torch.float64, device=trace.points.device) for name in ("rollout", "equal")}
    for layer, heads in enumerate(model.view.blocks):
        allowed = permitted(heads, n, trace.points.device)
        equal = allowed.double() / allowed.sum(-1, keepdim=True).clamp(min=1)
        for name, weights in (("rollout", mean_weights(heads, trace.read_by(layer))), ("equal", equal)):
            rolled[name] = (weights @ rolled[name] + rolled[name]) / 2
    flow = jacobian_shares(model, trace, query, probes, seed)
    seen = (rolled["equal"][query] > 0) & (torch.arange(n, device=flow.device) != query)
    values = {
        "rollout": (("token",), rolled["rollout"][query]),
        "jacobian": (("token",), flow),
        "correlation": ((), spearman(rolled["rollout"][query], flow, seen)),
        "correlation_null": ((), spearman(rolled["equal"][query], flow, seen)),
    }
    told = provenance(trace, True, analysis="rollout", query=query, probes=probes, seed=seed) | {"space": "raw"}
    return dataset(values, DEFINITIONS, {"token": range(n), "word": ("token", trace.tokens)}, told)


def mean_weights(heads: Heads, x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """The weights of all heads of a layer, in the mean, one map at a time."""
    q, k, _ = heads.read(x)
    total = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for head in range(heads.count):
        total += of_head(heads.mechanism, head).weights(*heads.one(q, k, head))[0, 0].double()
    return total / heads.count


def jacobian_shares(model: Model, trace: Trace, query: int, probes: int, seed: int) -> Float[Tensor, " n"]:
    """‖∂x^L_query/∂x^0_j‖ of every token j, of sum 1, from the gradients of random probes."""
    maps = [block(model.view, trace, layer) for layer in range(model.view.layers)]

    def through(x: Tensor) -> Tensor:
        for T in maps:
            x = T(x)
        return x

    x, generator = trace.points[0], torch.Generator().manual_seed(seed)
    back, square = jacobian(through, x)[1], torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for _ in range(probes):
        probe = torch.zeros_like(x)
        probe[query] = torch.randn(x.shape[-1], generator=generator).to(x)
        square += back(probe).double().square().sum(-1)
    return square.sqrt() / square.sqrt().sum()


def spearman(a: Float[Tensor, " n"], b: Float[Tensor, " n"], usable: Tensor) -> Float[Tensor, ""]:
    """Over the usable entries; NaN with fewer than 2, or where one does not vary."""
    one, other = ranked(torch.stack([a, b])[:, None], usable[None])[:, 0]
    return (one * other).sum() / (one.norm() * other.norm())
