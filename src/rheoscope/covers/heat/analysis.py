"""Powers of attention compared with the heat kernel and the Green's function of the head's own graph.

e^{−t(I−A)} = Σ_k e^{−t} tᵏ/k! Aᵏ            the random walk A at time t, with steps at Poisson times
s(sI + I − A)⁻¹ = Σ_k s/(1+s)^{k+1} Aᵏ        the same walk at an exponential random time with mean 1/s

Each row of A is a probability distribution over keys, so I − A is the Laplacian of the walk. It maps constants to 0 and has no
inverse. The Green's function is therefore the resolvent at s > 0, the Laplace transform of the heat kernel.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from rheoscope.attention.lower.block_size import block_numel
from rheoscope.attention.mask import Mask
from rheoscope.covers.layer_inputs import provenance
from rheoscope.covers.scores.analysis import allowed_pairs
from rheoscope.messages.advice import use
from rheoscope.messages.message import Message
from rheoscope.running.block_device import on_block
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.head import Heads
from rheoscope.space.masked_means import ValidTokens, fill_invalid, masked_mean, valid_counts
from rheoscope.space.settings import Bounds, Draws, Seed
from rheoscope.space.trace import Trace
from rheoscope.space.traces import Traces
from rheoscope.statistics.nulls import pooled_p_values, q_values

if TYPE_CHECKING:
    import xarray

TransitionMatrix = Float[Tensor, "*h n n"]
TransitionMatrices = Float[Tensor, "*b h n n"]
MEASURES = ("heat_distance", "green_distance", "row_distance")
TOLERANCE = 1e-4
"""The largest deviation of a row sum from 1. Attention in half precision needs some tolerance."""


@torch.no_grad()
def heat(
    trace: Trace,
    times: Sequence[Annotated[int, Bounds(1, 10_000)]] = (1, 2, 4, 8),
    draws: Draws = 10,
    seed: Seed = 0,
    progress: Callable[[int, int], None] | None = None,
) -> "xarray.Dataset":
    """The distance between repeated attention and heat diffusion on the head's own graph.

    **Question** Is repeated attention of this head a diffusion among tokens? The heat kernel at time t averages the powers of A
    over a Poisson number of steps with mean t. If A^t is close to it, the head acts as a diffusion.

    **Formula** `heat_distance` is the total variation ½Σ_j|·| between row i of A^t and row i of e^{−t(I−A)}, averaged over tokens i.
    `green_distance` compares A^t with the Green's function s(sI + I − A)⁻¹ at s = 1/t. `row_distance` is the mean total variation
    between two rows of the heat kernel. `spectral_gap` is 1 − max Re λ over the other eigenvalues of A.

    **Settings**
    `times` are the powers t.
    `draws` is the number of null draws. The null permutes the weights of every row among its permitted keys. All heads share the
    permutation. Rows keep their entropy and their mask.

    **Returns** (layer, head, time): `heat_distance`, `green_distance`, `row_distance`, each with its null, and the `q_value` of
    `heat_distance` (two-sided, null draws pooled over heads and times). (layer, head): `spectral_gap`. NaN for heads whose rows are
    not probability distributions (sigmoid, sinks, shaped attention).

    **Laws** Rows of a heat kernel sum to 1. e^{−(s+t)L} = e^{−sL}e^{−tL}, with L = I − A. If A² = A, `heat_distance` is e^{−t} times
    the distance of A to the identity. `row_distance` never grows with t. Under a causal mask the eigenvalues are the diagonal.

    **Source** Coifman and Lafon 2006 (diffusion on graphs); Chung 1997; Norris 1997 (Poisson times).

    **See also** `rs.dynamics("heat")`, the limit of metric attention without a model; `rollout`, which multiplies layers.

    >>> import rheoscope as rs
    >>> result = rs.heat(rs.load().trace("The keys to the cabinet are"), draws=4)
    >>> result.heat_distance.dims, bool((result.heat_distance <= 1).all())
    (('layer', 'head', 'time'), True)
    """
    values = {name: x[0] for name, x in batch(Traces.from_trace(trace), times, draws, seed, progress).items()}
    coords = {"layer": range(trace.view.layers), "head": range(trace.view.heads), "time": list(times)}
    return HEAT.label(values, coords, provenance(trace, True, draws=draws, seed=seed))


@torch.no_grad()
def batch(
    traces: Traces,
    times: Sequence[int] = (1, 2, 4, 8),
    draws: int = 10,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Every field of `heat` for many texts, as many at once as fit on the device. At padding, a walk stays where it is."""
    _check_settings(times, draws)
    n, n_layers = traces.points.shape[-2], traces.view.layers
    texts_at_once = max(1, block_numel(traces.points.device) // (traces.view.heads * n * n))
    chunks = [traces[low : low + texts_at_once] for low in range(0, len(traces), texts_at_once)]
    chunk_rows = []
    for chunk_index, chunk in enumerate(chunks):
        rows = []
        for layer in range(n_layers):
            rows.append(layer_values(chunk, layer, times, draws, seed))
            if progress is not None:
                progress(chunk_index * n_layers + layer + 1, len(chunks) * n_layers)
        chunk_rows.append({name: torch.stack([row[name] for row in rows], -3) for name in rows[0]})
    values = {name: torch.cat([chunk_row[name] for chunk_row in chunk_rows], -4) for name in chunk_rows[0]}
    gap = values.pop("spectral_gap")[..., 0]
    return {name: values[name] for name in MEASURES} | {"spectral_gap": gap} | _null_values(values, draws)


def layer_values(traces: Traces, layer: int, times: Sequence[int], draws: int, seed: int) -> dict[str, Tensor]:
    """One layer: the distances (b, h, time), the gap (b, h, 1) and null draws `…_null_draws` (draw, b, h, time)."""
    heads, valid = traces.view.layer_heads[layer], None if traces.is_unpadded else traces.is_token
    A = transition_matrices(heads, traces.layer_input(layer), traces.padding_for_layer(layer), valid)
    values = kernel(A, times, valid) | {"spectral_gap": spectral_gaps(A, valid)[..., None]}
    null_samples = [
        kernel(permute_weights(A, permutation), times, valid)
        for permutation in text_key_permutations(heads, traces, draws, seed)
    ]
    return values | {
        f"{name}_null_draws": torch.stack([sample[name] for sample in null_samples])
        for name in MEASURES
        if null_samples
    }


def _check_settings(times: Sequence[int], draws: int) -> None:
    if not times or any(type(time) is not int or time < 1 for time in times):
        raise RheoscopeError(
            Message("times must be positive integers, got {received}", received=repr(times)), use(times=(1, 2, 4))
        )
    if type(draws) is not int or draws < 0:
        raise RheoscopeError(
            Message("draws must be an integer and at least 0, got {received}", received=repr(draws)), use(draws=10)
        )


def _null_values(values: dict[str, Tensor], draws: int) -> dict[str, Tensor]:
    """Mean and standard deviation of the null draws, and q-values of `heat_distance`. Empty without draws."""
    if not draws:
        return {}
    nulls: dict[str, Tensor] = {}
    for name in MEASURES:
        null_samples = values[f"{name}_null_draws"]
        nulls |= {f"{name}_null": null_samples.mean(0), f"{name}_null_sd": null_samples.std(0)}
        if name == "heat_distance":
            text_pairs = zip(values[name], null_samples.unbind(1), strict=True)
            nulls["q_value"] = torch.stack(
                [q_values(pooled_p_values(*value_and_null)) for value_and_null in text_pairs]
            )
    return nulls


@on_block
def transition_matrices(
    heads: Heads, x: Float[Tensor, "b n d"], mask: Mask | None = None, valid: ValidTokens = None
) -> TransitionMatrices:
    """The weights of a layer in float64. NaN if rows are not distributions. A padding token attends to itself."""
    q, k, _ = heads.qkv(x)
    A = heads.mechanism.weights(q, k, mask).double()
    A = A if valid is None else torch.where(valid[:, None, :, None], A, _identity(A))
    is_stochastic = ((A.sum(-1) - 1).abs() < TOLERANCE).all(-1) & (A >= 0).flatten(-2).all(-1)
    return torch.where(is_stochastic[..., None, None], A / A.sum(-1, keepdim=True), torch.nan)


def kernel(
    A: TransitionMatrices, times: Sequence[int], valid: ValidTokens = None
) -> dict[str, Float[Tensor, "*b h time"]]:
    """The three distances of every head at every time."""
    measures: dict[str, list[Tensor]] = {name: [] for name in MEASURES}
    unit_heat = heat_kernel(A, 1)  # e^{−tL} is its t-th power, so one matrix exponential is enough
    for time in times:
        attention_power, heat_power = torch.linalg.matrix_power(A, time), torch.linalg.matrix_power(unit_heat, time)
        measures["heat_distance"].append(masked_mean(total_variation(attention_power, heat_power), valid))
        measures["green_distance"].append(
            masked_mean(total_variation(attention_power, green_function(A, 1 / time)), valid)
        )
        measures["row_distance"].append(row_distance(heat_power, valid))
    return {name: torch.stack(values, -1) for name, values in measures.items()}


def heat_kernel(A: TransitionMatrix, time: float | int) -> TransitionMatrix:
    """e^{−t(I−A)}, the distribution of the walk A at time t, with one Poisson step per unit of time on average.

    >>> H = heat_kernel(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), 2.0)
    >>> [round(float(x), 4) for x in (H[1, 1], H[1].sum())]  # e^{−2/2}
    [0.3679, 1.0]
    """
    return torch.linalg.matrix_exp(time * (A - _identity(A)))


def green_function(A: TransitionMatrix, s: float | int) -> TransitionMatrix:
    """s(sI + I − A)⁻¹ for s > 0, the distribution of the walk at an exponential random time with mean 1/s.

    Divided by s, it is the Laplace transform of the heat kernel.

    >>> G = green_function(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), 0.5)
    >>> [round(float(x), 4) for x in (G[1, 1], G[1].sum())]
    [0.5, 1.0]
    """
    return torch.linalg.solve((1 + s) * _identity(A) - A, s * _identity(A).expand_as(A))


def _identity(A: TransitionMatrix) -> Float[Tensor, "n n"]:
    return torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)


def total_variation(P: TransitionMatrix, Q: TransitionMatrix) -> Float[Tensor, "*h n"]:
    """½ Σ_j |P_ij − Q_ij| of every row, the largest difference of probability over all sets of keys."""
    return (P - Q).abs().sum(-1) / 2


def row_distance(P: TransitionMatrices, valid: ValidTokens = None) -> Float[Tensor, "*b h"]:
    """The mean total variation between two rows of P, over pairs of tokens."""
    total_distance = fill_invalid(fill_invalid(torch.cdist(P, P, p=1), valid).mT, valid).sum((-1, -2))
    n = valid_counts(P[..., 0], valid)
    return total_distance / (2 * n * (max(n - 1, 1) if isinstance(n, int) else (n - 1).clamp(min=1)))


def spectral_gaps(A: TransitionMatrices, valid: ValidTokens = None) -> Float[Tensor, "*b h"]:
    """1 − the second largest real part of the eigenvalues of each A. Under a causal mask they are the diagonal."""
    if A.shape[-1] < 2:
        return torch.full(A.shape[:-2], torch.nan, dtype=A.dtype, device=A.device)
    is_walk = ~A.isnan().flatten(-2).any(-1)
    matrices = torch.where(is_walk[..., None, None], A, 0)
    if valid is not None:  # moves the eigenvalues of padding below all others
        matrices = matrices - 3 * torch.diag_embed((~valid).to(A))[:, None]
    real_parts = (
        matrices.diagonal(dim1=-2, dim2=-1) if not matrices.triu(1).any() else torch.linalg.eigvals(matrices).real
    )
    second_largest = real_parts.sort(-1).values[..., -2]
    return torch.where(is_walk & (second_largest > -1.5), 1 - second_largest, torch.nan)


def key_permutations(allowed: Bool[Tensor, "n n"], draws: int, seed: int) -> Int[Tensor, "draw n n"]:
    """Random permutations of the permitted keys of every row. Entry [draw, i, j] is the key whose weight moves to j."""
    generator = Generator().manual_seed(seed)
    random_keys = torch.rand(draws, *allowed.shape, generator=generator, dtype=torch.float64).to(allowed.device)
    # permitted keys first, in random order
    shuffled_order = torch.where(allowed, random_keys, 2.0).argsort(dim=-1, stable=True)
    plain_order = torch.where(allowed, 0, 1).argsort(dim=-1, stable=True).expand_as(shuffled_order)
    return torch.empty_like(shuffled_order).scatter_(-1, plain_order, shuffled_order)


def text_key_permutations(heads: Heads, traces: Traces, draws: int, seed: int) -> Int[Tensor, "draw b n n"]:
    """`key_permutations` of every text in a batch. Padding stays in place."""
    n, device = traces.points.shape[-2], traces.points.device
    permutations = torch.arange(n, device=device).repeat(draws, len(traces), n, 1)
    for text_index, n_tokens in enumerate(traces.lengths.tolist()):
        permutations[:, text_index, :n_tokens, :n_tokens] = key_permutations(
            allowed_pairs(heads, n_tokens, device), draws, seed
        )
    return permutations


def permute_weights(A: TransitionMatrices, permutation: Int[Tensor, "*b n n"]) -> TransitionMatrices:
    """Every row with its weights permuted among the keys."""
    return A.gather(-1, permutation.unsqueeze(-3).expand_as(A))


DIMS = ("layer", "head", "time")
DEFINITIONS = {
    "heat_distance": Message("mean total variation between the rows of A^t and of the heat kernel e^{−t(I−A)}"),
    "green_distance": Message("mean total variation between the rows of A^t and of s(sI + I − A)⁻¹ with s = 1/t"),
    "row_distance": Message(
        "mean total variation between two rows of the heat kernel (1: the origin is recognisable, 0: fully mixed)"
    ),
}
HEAT = Analysis(
    name="heat",
    question="Is repeated attention a diffusion among tokens?",
    ask=heat,
    batch=batch,
    needs="trace",
    fields={
        name: Field(DIMS, definition, null=f"{name}_null", null_sd=f"{name}_null_sd")
        for name, definition in DEFINITIONS.items()
    }
    | {
        f"{name}_null": Field(
            DIMS, Message("mean {field} with the weights of every row permuted among its permitted keys", field=name)
        )
        for name in DEFINITIONS
    }
    | {
        f"{name}_null_sd": Field(DIMS, Message("standard deviation of {field} over the null draws", field=name))
        for name in DEFINITIONS
    }
    | {
        "q_value": Field(DIMS, "two-sided q-value of heat_distance, with null draws pooled over heads and times"),
        "spectral_gap": Field(
            ("layer", "head"),
            "1 − the second largest real part of the eigenvalues of A, the slowest rate of convergence of the diffusion",
        ),
    },
    expensive=True,
)
