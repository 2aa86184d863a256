"""Attention rollout compared with the Jacobian of the last point by the embeddings."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rheoscope.covers.fixed_point.layer_map import Cloud, Map, layer_map
from rheoscope.covers.fixed_point.row_probes import probe_row
from rheoscope.covers.layer_inputs import provenance
from rheoscope.covers.scores.analysis import allowed_pairs
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.components import resolve_positions
from rheoscope.space.head import Heads, single_head_mechanism
from rheoscope.space.model import Model, check_same_weights
from rheoscope.space.report_run import ReportRun
from rheoscope.space.settings import Bounds, Seed, TokenIndex, Tolerance
from rheoscope.space.trace import Trace
from rheoscope.statistics.ranks import unit_ranks

if TYPE_CHECKING:
    import xarray


@torch.no_grad()
def rollout(
    model: Model,
    trace: Trace,
    token: TokenIndex = -1,
    probes: Annotated[int, Bounds(2, 100_000, advised=16)] | None = None,
    seed: Seed = 0,
    tolerance: Tolerance = 0.005,
) -> "xarray.Dataset":
    """The share of every token in the last point of one token, by attention rollout and by the Jacobian.

    **Question** Does attention, multiplied through the layers, show how information flows between tokens?

    **Formula** Rollout is Π_ℓ ½(Ā_ℓ + I), with Ā the mean over heads. The Jacobian share is the Frobenius norm of ∂x^L_i/∂x^0_j
    through heads, norms and MLPs. It is estimated from random orthonormal probes of x^L_i, whose standard error is a jackknife
    over probes. As many probes as coordinates give the exact shares, with error 0.

    **Settings**
    `token` is the position i.
    Probes are added until no share has a standard error above `tolerance`.
    `probes` is the largest number of probes; None means the width of the model.

    **Returns** (token): `rollout` and `jacobian`, each with sum 1, and `jacobian_error`. Scalars: `correlation` with
    `correlation_error`, and `correlation_null`.

    **Laws** Both are 0 for tokens that the token cannot see. A product of stochastic matrices is stochastic.

    **Source** Abnar and Zuidema, arXiv:2005.00928.

    **See also** `path_weights`, which follows single heads; `fixed_point`, for the Jacobian of single layers.

    >>> import rheoscope as rs
    >>> model = rs.load()
    >>> result = rs.rollout(model, model.trace("The keys to the cabinet are on the table"))
    >>> round(float(result.rollout.sum()), 4), round(float(result.jacobian.sum()), 4)
    (1.0, 1.0)
    """
    check_same_weights(model, trace)
    (position,) = resolve_positions([token], len(trace))
    maps = [layer_map(trace, layer) for layer in range(trace.view.layers)]
    points = [trace.layer_input(layer) for layer in range(trace.view.layers)]
    values = kernel(trace.view.layer_heads, points, maps, position, probes, seed, tolerance)
    settings = {"token": position, "probes": trace.view.width if probes is None else probes, "seed": seed}
    settings |= provenance(trace, True, tolerance=tolerance) | {"space": "raw"}
    return ROLLOUT.label(values, {"token": range(len(trace)), "token_text": ("token", trace.tokens)}, settings)


def kernel(
    blocks: Sequence[Heads],
    points: Sequence[Cloud],
    maps: Sequence[Map],
    position: int,
    probes: int | None,
    seed: int,
    tolerance: float,
) -> dict[str, Tensor]:
    """Rollout and Jacobian shares of one token, from the heads of every layer, their inputs and the layer maps."""
    n, device = len(points[0]), points[0].device
    rollouts = {name: torch.eye(n, dtype=torch.float64, device=device) for name in ("rollout", "uniform")}
    for heads, x in zip(blocks, points, strict=True):
        allowed = allowed_pairs(heads, n, device)
        uniform_weights = allowed.double() / allowed.sum(-1, keepdim=True).clamp(min=1)
        for name, weights in (("rollout", mean_weights(heads, x)), ("uniform", uniform_weights)):
            rollouts[name] = (weights @ rollouts[name] + rollouts[name]) / 2
    attention_rollout, uniform_rollout = rollouts["rollout"][position], rollouts["uniform"][position]
    is_visible = (uniform_rollout > 0) & (torch.arange(n, device=device) != position)

    def statistic(squares: Float[Tensor, "*b n"]) -> Float[Tensor, "*b m"]:
        """The shares, and their correlation with the rollout."""
        shares = squares.sqrt() / squares.sqrt().sum(-1, keepdim=True)
        return torch.cat([shares, _spearman(attention_rollout, shares, is_visible)[..., None]], -1)

    generator = torch.Generator().manual_seed(seed)
    values, errors = probe_row(
        partial(_apply_all, maps), points[0], position, statistic, tolerance, probes, generator, slice(n)
    )
    return {
        "rollout": attention_rollout,
        "jacobian": values[:n],
        "jacobian_error": errors[:n],
        "correlation": values[n],
        "correlation_error": errors[n],
        "correlation_null": _spearman(uniform_rollout, values[:n], is_visible),
    }


def _apply_all(maps: Sequence[Map], x: Tensor) -> Tensor:
    for T in maps:
        x = T(x)
    return x


def _spearman(a: Float[Tensor, " n"], b: Float[Tensor, "*b n"], is_usable: Bool[Tensor, " n"]) -> Float[Tensor, "*b"]:
    """The Spearman correlation over the usable entries. NaN if there are fewer than 2, or if `a` or `b` is constant."""
    rows = b.reshape(-1, b.shape[-1])
    ranks = unit_ranks(torch.cat([a[None], rows]), is_usable.expand(len(rows) + 1, -1))
    is_defined = ranks[0].any() & ranks[1:].any(-1)
    return torch.where(is_defined, ranks[1:] @ ranks[0], torch.nan).reshape(b.shape[:-1])


def mean_weights(heads: Heads, x: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
    """The mean over heads of the weights of a layer, computed one head at a time."""
    q, k, _ = heads.qkv(x)
    total = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    for head in range(heads.n_heads):
        total += single_head_mechanism(heads.mechanism, head).weights(*heads.select_head(q, k, head))[0, 0].double()
    return total / heads.n_heads


ROLLOUT = Analysis(
    name="rollout",
    question="Does attention, multiplied through the layers, show how information flows between tokens?",
    ask=rollout,
    needs="model",
    report_runs=(ReportRun("covers", 8, for_files=True),),
    report={"tolerance": 0.01},
    fields={
        "rollout": Field(
            ("token",),
            "share of each token in the selected token's row of Π ½(Ā + I), with Ā the mean weights of a layer",
        ),
        "jacobian": Field(
            ("token",),
            "share of each token j in ‖∂x_i/∂x_j‖ from the embeddings to the last points, estimated from random probes",
            basis_dependent=True,
        ),
        "jacobian_error": Field(
            ("token",),
            "standard error of jacobian over the random probes; 0 with as many probes as coordinates, which are exact",
            basis_dependent=True,
        ),
        "correlation": Field(
            (),
            "Spearman correlation of rollout and jacobian over the other tokens that the selected token can see",
            null="correlation_null",
            basis_dependent=True,
        ),
        "correlation_error": Field(
            (), "standard error of correlation over the random probes, by jackknife", basis_dependent=True
        ),
        "correlation_null": Field(
            (),
            "correlation with a rollout of uniform attention, which is what the mask alone explains",
            basis_dependent=True,
        ),
    },
)
