"""Does attention, followed through all layers, say where a token's last place comes from? Rollout against the Jacobian."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.covers.fixed_point.analysis import Cloud, Map, jacobian_products, layer_map
from rheoscope.covers.layer_inputs import provenance
from rheoscope.covers.scores.analysis import allowed_pairs
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import resolve_positions
from rheoscope.space.head import Heads, single_head_mechanism
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.report_run import ReportRun
from rheoscope.space.settings import Bounds, Seed, TokenIndex
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import unit_ranks

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def rollout(
    model: Model,
    trace: Trace,
    token: TokenIndex = -1,
    probes: Annotated[int, Bounds(1, 100_000, advised=16)] = 16,
    seed: Seed = 0,
) -> "xarray.Dataset":
    """Where the last place of a token comes from: by attention rollout, and by the true derivative.

    **Answers** "may I read attention, multiplied through the layers, as a flow from tokens to tokens?"

    **Formula** rollout: Π_ℓ ½(Ā_ℓ + I), Ā the mean over heads. Jacobian: the Frobenius norm of ∂x^L_i/∂x^0_j through
    heads, norms and MLPs, by random probes of x^L_i, i the `token`.

    **Gives** (token): `rollout`, `jacobian`, each adding up to 1; scalars `correlation`, `correlation_null`.

    **Laws** both vanish on tokens that the token cannot see; a layer of Markov kernels stays one.

    **Source** Abnar and Zuidema, arXiv:2005.00928.

    **Siblings** `path_weights` follows single heads; `fixed_point` has the Jacobian of single layers.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> found = rs.rollout(model, model.trace("The keys to the cabinet are on the table"))
    >>> round(float(found.rollout.sum()), 4), round(float(found.jacobian.sum()), 4)
    (1.0, 1.0)
    """
    check_same_weights(model, trace)
    (position,) = resolve_positions([token], len(trace))
    if probes < 1:
        raise RheoscopeError(f"the derivative needs 1 random probe or more, got probes={probes}; type probes=16")
    maps = [layer_map(trace, layer) for layer in range(trace.view.layers)]
    points = [trace.layer_input(layer) for layer in range(trace.view.layers)]
    values = kernel(trace.view.layer_heads, points, maps, position, probes, seed)
    settings = provenance(trace, True, token=position, probes=probes, seed=seed) | {"space": "raw"}
    return ROLLOUT.label(values, {"token": range(len(trace)), "token_text": ("token", trace.tokens)}, settings)


def kernel(
    blocks: Sequence[Heads], points: Sequence[Cloud], maps: Sequence[Map], position: int, probes: int, seed: int
) -> dict[str, Tensor]:
    """Both shares of one token, from the heads of every layer, the points that they read and the layers' maps."""
    n, device = len(points[0]), points[0].device
    rollouts = {name: torch.eye(n, dtype=torch.float64, device=device) for name in ("rollout", "equal")}
    for heads, x in zip(blocks, points, strict=True):
        allowed = allowed_pairs(heads, n, device)
        uniform_weights = allowed.double() / allowed.sum(-1, keepdim=True).clamp(min=1)
        for name, weights in (("rollout", mean_weights(heads, x)), ("equal", uniform_weights)):
            rollouts[name] = (weights @ rollouts[name] + rollouts[name]) / 2
    attention_rollout, uniform_rollout = rollouts["rollout"][position], rollouts["equal"][position]
    token_fractions = jacobian_fractions(maps, points[0], position, probes, seed)
    is_visible = (uniform_rollout > 0) & (torch.arange(n, device=device) != position)
    correlations = {
        "correlation": _spearman(attention_rollout, token_fractions, is_visible),
        "correlation_null": _spearman(uniform_rollout, token_fractions, is_visible),
    }
    return {"rollout": attention_rollout, "jacobian": token_fractions} | correlations


def _spearman(a: Float[Tensor, " n"], b: Float[Tensor, " n"], is_usable: Bool[Tensor, " n"]) -> Float[Tensor, ""]:
    """Spearman's correlation over the usable entries; NaN with fewer than 2, or where one of the two does not vary."""
    ranks = unit_ranks(torch.stack([a, b]), is_usable.expand(2, -1))
    return torch.where(ranks.any(-1).all(), ranks.prod(0).sum(), torch.nan)


def mean_weights(heads: Heads, x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """The weights of all heads of a layer, in the mean, one map at a time."""
    q, k, _ = heads.qkv(x)
    total = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for head in range(heads.n_heads):
        total += single_head_mechanism(heads.mechanism, head).weights(*heads.select_head(q, k, head))[0, 0].double()
    return total / heads.n_heads


def jacobian_fractions(maps: Sequence[Map], x: Cloud, position: int, probes: int, seed: int) -> Float[Tensor, " n"]:
    """‖∂x^L_i/∂x^0_j‖ of every token j, of sum 1, from the gradients of random probes; i is `at`."""

    def all_layers(x: Tensor) -> Tensor:
        for T in maps:
            x = T(x)
        return x

    generator = torch.Generator().manual_seed(seed)
    vjp, squared_norms = jacobian_products(all_layers, x)[1], torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for _ in range(probes):
        probe = torch.zeros_like(x)
        probe[position] = torch.randn(x.shape[-1], generator=generator).to(x)
        squared_norms += vjp(probe).double().square().sum(-1)
    return squared_norms.sqrt() / squared_norms.sqrt().sum()


ROLLOUT = Analysis(
    name="rollout",
    question="May attention, multiplied through the layers, be read as a flow from tokens to tokens?",
    ask=rollout,
    needs="model",
    report_runs=(ReportRun("covers", 8, for_files=True),),
    report={"probes": 8},
    fields={
        "rollout": Field(
            ("token",),
            "share of each token in the token's row of the product over layers of ½(mean weights of the heads) + ½ identity",
        ),
        "jacobian": Field(
            ("token",),
            "share of each token j in ‖∂x_i/∂x_j‖, from the embeddings to the last points: what really flows, to first order, by random "
            "probes",
            basis_dependent=True,
        ),
        "correlation": Field(
            (),
            "Spearman correlation of rollout and jacobian over the tokens that the token can see, itself left out",
            null="correlation_null",
            basis_dependent=True,
        ),
        "correlation_null": Field(
            (),
            "the same for a rollout of equal weights on all permitted keys: what the mask alone explains",
            basis_dependent=True,
        ),
    },
)
