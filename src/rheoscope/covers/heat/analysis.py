"""Is attention a diffusion? The heat kernel of a head's own graph, its Green's function, and how far powers of attention are.

e^{−t(I−A)} = Σ_k e^{−t} tᵏ/k! Aᵏ            a walk by A whose steps come at random (Poisson) times, after the time t
s(sI + I − A)⁻¹ = Σ_k s/(1+s)^{k+1} Aᵏ        the same walk, stopped at a random (exponential) time of mean 1/s

Rows of A are laws over the keys, so I − A is the Laplacian of the walk. It maps constants to 0 and has no inverse: the Green's
function is the resolvent at s > 0, which is the Laplace transform of the heat kernel.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from rheoscope.attention.lower.block_size import numbers_at_once
from rheoscope.attention.mask import Mask
from rheoscope.covers.layer_inputs import provenance
from rheoscope.covers.scores.analysis import permitted
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Heads
from rheoscope.space.masked_means import There, counts, kept, mean
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.statistics.nulls import pooled_p, q_values

if TYPE_CHECKING:
    import xarray

Walk = Float[Tensor, "*h n n"]
Walks = Float[Tensor, "*b h n n"]
MEASURED = ("heat_distance", "green_distance", "memory")
TOLERANCE = 1e-4
"""How far from 1 a row may sum and still be a law: attention in half precision."""


@torch.no_grad()
def heat(
    trace: Trace,
    times: Sequence[int] = (1, 2, 4, 8),
    draws: int = 10,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """How near is attention, applied again and again, to heat that spreads over the head's own graph?

    **Answers** "may I think of this head as a diffusion among tokens?" Heat at time t is the k-th power of attention with k
    drawn from the Poisson law of mean t. Where both agree, only the time counts, and attention is a diffusion; where they
    differ, single steps can be told apart: the head jumps.

    **Formula** of the weights A of a head: total variation ½Σ_j|·| between row i of A^t and row i of e^{−t(I−A)}, mean over
    tokens i; the same for the Green's function s(sI + I − A)⁻¹ at s = 1/t; the gap 1 − max Re λ over the other eigenvalues of A,
    the slowest rate at which heat settles.

    **Null** the weights of every row dealt anew among the keys that the row may read, itself too, the same deal for all heads:
    rows keep their entropy and the mask, which key gets which weight is chance.

    **Gives** (layer, head, time): `heat_distance`, `green_distance`, `memory`, each with its null, and `q_value` of the first
    (two-sided, draws of all heads and times pooled); (layer, head): `gap`. NaN for heads whose weights are no laws (sigmoid,
    sinks, shaped): they are no walk.

    **Laws** heat kernels have rows that are laws, e^{−(s+t)L} = e^{−sL}e^{−tL}, and equal their series; A² = A gives the distance
    e^{−t} times that of A to the identity; memory never grows; under a causal mask eigenvalues are the weights on oneself.

    **Source** Coifman and Lafon 2006 (heat on a graph of walks); Chung 1997; Norris 1997 (Poissonisation).

    **Siblings** `rs.dynamics("heat")` is the limit of metric attention without a model; `rollout` multiplies layers.

    >>> import rheoscope as rs
    >>> found = rs.heat(rs.load().trace("The keys to the cabinet are"), draws=4)
    >>> found.heat_distance.dims, bool((found.heat_distance <= 1).all())
    (('layer', 'head', 'time'), True)
    """
    values = {name: x[0] for name, x in batch(Traces.of(trace), times, draws, seed, progress).items()}
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads), "time": list(times)}
    return HEAT.answer(values, coords, provenance(trace, True, draws=draws, seed=seed))


@torch.no_grad()
def batch(
    traces: Traces,
    times: Sequence[int] = (1, 2, 4, 8),
    draws: int = 10,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Every field of `heat`, of as many texts at once as a device holds: a walk stays where it is on tokens that are not there."""
    _check(times, draws)
    n, layers = traces.points.shape[-2], traces.view.layers
    some = max(1, numbers_at_once(traces.points.device) // (traces.view.heads * n * n))
    parts = [traces[low : low + some] for low in range(0, len(traces), some)]
    found = []
    for done, part in enumerate(parts):
        rows = []
        for layer in range(layers):
            rows.append(of_layer(part, layer, times, draws, seed))
            if progress is not None:
                progress(done * layers + layer + 1, len(parts) * layers)
        found.append({name: torch.stack([row[name] for row in rows], -3) for name in rows[0]})
    values = {name: torch.cat([part[name] for part in found], -4) for name in found[0]}
    gap = values.pop("gap")[..., 0]
    return {name: values[name] for name in MEASURED} | {"gap": gap} | _nulls(values, draws)


def of_layer(traces: Traces, layer: int, times: Sequence[int], draws: int, seed: int) -> dict[str, Tensor]:
    """The heads of one layer as walks (b, h, time), their gaps (b, h, 1), and the same of draws, `…_drawn` (draw, b, h, time)."""
    heads, there = traces.view.blocks[layer], None if traces.unpadded else traces.real
    A = weights(heads, traces.read_by(layer), traces.unseen(layer), there)
    found = kernel(A, times, there) | {"gap": gaps(A, there)[..., None]}
    drawn = [kernel(dealt(A, order), times, there) for order in orders_of(heads, traces, draws, seed)]
    return found | {f"{name}_drawn": torch.stack([one[name] for one in drawn]) for name in MEASURED if drawn}


def _check(times: Sequence[int], draws: int) -> None:
    if not times or any(type(time) is not int or time < 1 for time in times):
        raise RheoscopeError(
            f"attention has whole powers: times are whole numbers of 1 or more, got {times!r}; type times=(1, 2, 4)"
        )
    if type(draws) is not int or draws < 0:
        raise RheoscopeError(f"draws is a whole number of 0 or more, got {draws!r}; type draws=10")


def _nulls(values: dict[str, Tensor], draws: int) -> dict[str, Tensor]:
    """Mean and spread of the draws, and q of the distance to heat; nothing without draws."""
    if not draws:
        return {}
    found: dict[str, Tensor] = {}
    for name in MEASURED:
        chance = values[f"{name}_drawn"]
        found |= {f"{name}_null": chance.mean(0), f"{name}_null_sd": chance.std(0)}
        if name == "heat_distance":
            of_texts = zip(values[name], chance.unbind(1), strict=True)
            found["q_value"] = torch.stack([q_values(pooled_p(*text)) for text in of_texts])
    return found


def weights(heads: Heads, x: Float[Tensor, "b n d"], mask: Mask | None = None, there: There = None) -> Walks:
    """The weights of all heads of a layer, in float64; NaN where rows are no laws. A token that is not there looks at itself."""
    q, k, _ = heads.read(x)
    A = heads.mechanism.weights(q, k, mask).double()
    A = A if there is None else torch.where(there[:, None, :, None], A, _identity(A))
    law = ((A.sum(-1) - 1).abs() < TOLERANCE).all(-1) & (A >= 0).flatten(-2).all(-1)
    return torch.where(law[..., None, None], A / A.sum(-1, keepdim=True), torch.nan)


def kernel(A: Walks, times: Sequence[int], there: There = None) -> dict[str, Float[Tensor, "*b h time"]]:
    """Distances and memory of walks, at every time."""
    found: dict[str, list[Tensor]] = {name: [] for name in MEASURED}
    unit = heat_kernel(A, 1)  # e^{−tL} is its t-th power: one exponential serves all times
    for time in times:
        power, spread = torch.linalg.matrix_power(A, time), torch.linalg.matrix_power(unit, time)
        found["heat_distance"].append(mean(total_variation(power, spread), there))
        found["green_distance"].append(mean(total_variation(power, green_function(A, 1 / time)), there))
        found["memory"].append(memory(spread, there))
    return {name: torch.stack(values, -1) for name, values in found.items()}


def heat_kernel(A: Walk, time: float | int) -> Walk:
    """e^{−t(I−A)}: where a walk by A is after the time t, when a step comes at random once a unit of time.

    >>> H = heat_kernel(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), 2.0)
    >>> [round(float(x), 4) for x in (H[1, 1], H[1].sum())]  # e^{−2/2}
    [0.3679, 1.0]
    """
    return torch.linalg.matrix_exp(time * (A - _identity(A)))


def green_function(A: Walk, s: float | int) -> Walk:
    """s(sI + I − A)⁻¹, s > 0: where the walk is at a random time of mean 1/s; over s, the Laplace transform of the heat kernel.

    >>> G = green_function(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), 0.5)
    >>> [round(float(x), 4) for x in (G[1, 1], G[1].sum())]
    [0.5, 1.0]
    """
    return torch.linalg.solve((1 + s) * _identity(A) - A, s * _identity(A).expand_as(A))


def _identity(A: Walk) -> Float[Tensor, "n n"]:
    return torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)


def total_variation(P: Walk, Q: Walk) -> Float[Tensor, "*h n"]:
    """½ Σ_j |P_ij − Q_ij| of every row: the largest difference that the two laws give to any set of keys."""
    return (P - Q).abs().sum(-1) / 2


def memory(P: Walks, there: There = None) -> Float[Tensor, "*b h"]:
    """The mean over pairs of tokens of the total variation between their rows: how well an end tells where a walk began."""
    far = kept(kept(torch.cdist(P, P, p=1), there).mT, there).sum((-1, -2))
    n = counts(P[..., 0], there)
    return far / (2 * n * (max(n - 1, 1) if isinstance(n, int) else (n - 1).clamp(min=1)))


def gaps(A: Walks, there: There = None) -> Float[Tensor, "*b h"]:
    """1 − the second largest real part of the eigenvalues of each A; under a causal mask they are its diagonal."""
    if A.shape[-1] < 2:
        return torch.full(A.shape[:-2], torch.nan, dtype=A.dtype, device=A.device)
    walks = ~A.isnan().flatten(-2).any(-1)
    usable = torch.where(walks[..., None, None], A, 0)
    if there is not None:  # tokens that are not there: the smallest eigenvalues
        usable = usable - 3 * torch.diag_embed((~there).to(A))[:, None]
    real = usable.diagonal(dim1=-2, dim2=-1) if not usable.triu(1).any() else torch.linalg.eigvals(usable).real
    second = real.sort(-1).values[..., -2]
    return torch.where(walks & (second > -1.5), 1 - second, torch.nan)


def orders(allowed: Bool[Tensor, "n n"], draws: int, seed: int) -> Int[Tensor, "draw n n"]:
    """For every draw, row and key the key whose weight it gets: permitted keys change places, row by row, others stay."""
    generator = Generator().manual_seed(seed)
    drawn = torch.rand(draws, *allowed.shape, generator=generator, dtype=torch.float64).to(allowed.device)
    mixed = torch.where(allowed, drawn, 2.0).argsort(dim=-1, stable=True)  # permitted keys first, in a random order
    plain = torch.where(allowed, 0, 1).argsort(dim=-1, stable=True).expand_as(mixed)
    return torch.empty_like(mixed).scatter_(-1, plain, mixed)


def orders_of(heads: Heads, traces: Traces, draws: int, seed: int) -> Int[Tensor, "draw b n n"]:
    """The same of every text as if it were alone; what is not there stays."""
    n, device = traces.points.shape[-2], traces.points.device
    found = torch.arange(n, device=device).repeat(draws, len(traces), n, 1)
    for at, size in enumerate(traces.lengths.tolist()):
        found[:, at, :size, :size] = orders(permitted(heads, size, device), draws, seed)
    return found


def dealt(A: Walks, order: Int[Tensor, "*b n n"]) -> Walks:
    """Every row with its weights at other keys."""
    return A.gather(-1, order.unsqueeze(-3).expand_as(A))


DIMS = ("layer", "head", "time")
SAID = {
    "heat_distance": "mean over tokens of the total variation between their row of A^t and of the heat kernel e^{−t(I−A)}",
    "green_distance": "mean over tokens of the total variation between their row of A^t and of s(sI + I − A)⁻¹, s = 1/t",
    "memory": "mean over pairs of tokens of the total variation between their rows of the heat kernel: 1 where heat tells whence it "
    "came, 0 where it is mixed",
}
HEAT = Analysis(
    name="heat",
    question="Is attention, applied again and again, a diffusion among tokens?",
    ask=heat,
    batch=batch,
    needs="trace",
    fields={name: Field(DIMS, said, null=f"{name}_null", null_sd=f"{name}_null_sd") for name, said in SAID.items()}
    | {
        f"{name}_null": Field(DIMS, f"{name} with the weights of every row dealt anew among its permitted keys")
        for name in SAID
    }
    | {f"{name}_null_sd": Field(DIMS, f"spread of {name} over the draws of the null") for name in SAID}
    | {
        "q_value": Field(DIMS, "of heat_distance against its null, two-sided, draws of all heads and times pooled"),
        "gap": Field(
            ("layer", "head"),
            "1 − the second largest real part of the eigenvalues of A: the slowest rate at which heat settles",
        ),
    },
    dear=True,
)
