"""Exact optimal assignments between clouds, their costs and their permutation nulls, for many pairs at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from statistics import stdev

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import cache_block_numel
from rheoscope.attention.lower.kernels.triton_lowerings import HAS_TRITON
from rheoscope.flow.transport.sinkhorn import sinkhorn_divergence
from rheoscope.space.cpu_cores import map_on_cores
from rheoscope.statistics.nulls import random_permutations

MAX_EXACT_TOKENS = 2048
"""The largest number of tokens for an exact assignment. A cost matrix in float64 then has 32 MiB."""
MAX_KERNEL_TOKENS = 256
"""The largest number of tokens for an assignment on a GPU, where one warp solves a table."""
SAME_POINT_TOLERANCE = 1e-6
"""Points closer than this, relative to the largest norm, count as equal (the rounding of float32)."""
COST_BYTES_PER_CORE = 2**26
"""Bytes of cost matrices in memory at once, per core."""
SINGLE_PAIR_TOKENS = 256
"""From this number of tokens on, a job is one pair. Smaller texts are one job, because switching threads would take longer."""
Cloud = Float[Tensor, "n d"]
CloudStack = Float[Tensor, "p n d"]
TextClouds = Float[Tensor, "p _ d"]
"""The clouds of one text. Texts differ in their numbers of tokens."""
CloudPair = tuple[int, int]
"""The indices of the first and of the second cloud of a pair."""


@dataclass(frozen=True, eq=False)
class PairTransport:
    """The transport of one cloud to another: statistics, couplings of points and of directions, and null draws."""

    statistics: dict[str, float]
    coupling: Int[Tensor, " n"]
    partner: Int[Tensor, " n"]
    null_draws: dict[str, list[float]]


@torch.no_grad()
def transport_all_pairs(
    texts: Sequence[TextClouds], pairs: Sequence[CloudPair], draws: Sequence[int], seed: int
) -> Iterator[PairTransport]:
    """The result of `transport_pair` for every pair of clouds of every text, in order.

    The cost tables of many pairs are computed together on the device and solved on all cores.
    """
    if max(points.shape[1] for points in texts) > MAX_EXACT_TOKENS:
        single_jobs = [(points, pair, n_draws) for points in texts for pair, n_draws in zip(pairs, draws, strict=True)]
        yield from map_on_cores(
            lambda job: transport_pair(job[0][job[1][0]], job[0][job[1][1]], job[2], seed), single_jobs
        )
        return
    for group in _memory_batches([points.shape[1] for points in texts], len(pairs)):
        tables = [
            _cost_tables(
                torch.stack([texts[text_index] for text_index, _ in parts]),
                [pairs[pair_index] for pair_index in pair_range],
            )
            for (_, pair_range), parts in _group_same_shape(group, texts)
        ]
        pairs_per_job = (
            1 if max(table.x.shape[1] for table in tables) >= SINGLE_PAIR_TOKENS or any(draws) else len(pairs)
        )
        draws_per_table = [
            [draws[pair_index] for _, pair_range in parts for pair_index in pair_range]
            for _, parts in _group_same_shape(group, texts)
        ]
        jobs = [
            (table, range(start, min(start + pairs_per_job, len(pair_draws))), pair_draws)
            for table, pair_draws in zip(tables, draws_per_table, strict=True)
            for start in range(0, len(pair_draws), pairs_per_job)
        ]
        solutions = chain.from_iterable(map_on_cores(lambda job: job[0].solve(*job[1:], seed), jobs))
        for table in tables:
            yield from table.summarise(list(islice(solutions, len(table.x))))


def _group_same_shape(
    group: list["_TextPairs"], texts: Sequence[TextClouds]
) -> list[tuple[tuple[int, range], list["_TextPairs"]]]:
    """Group consecutive texts with equal numbers of tokens and the same pairs."""
    return [(key, list(parts)) for key, parts in groupby(group, lambda part: (texts[part[0]].shape[1], part[1]))]


_TextPairs = tuple[int, range]
"""A text and a range of its pairs."""


def _memory_batches(token_counts: Sequence[int], n_pairs: int) -> Iterator[list[_TextPairs]]:
    """Batches of texts and ranges of pairs whose cost tables fit in memory."""
    group: list[_TextPairs] = []
    used_bytes, max_bytes = 0, COST_BYTES_PER_CORE * torch.get_num_threads()
    for text_index, n in enumerate(token_counts):
        start, bytes_per_pair = 0, 16 * n * n
        while start < n_pairs:
            if group and used_bytes + bytes_per_pair > max_bytes:
                yield group
                group, used_bytes = [], 0
            pair_range = range(start, min(n_pairs, start + max(1, (max_bytes - used_bytes) // bytes_per_pair)))
            group.append((text_index, pair_range))
            used_bytes, start = used_bytes + bytes_per_pair * len(pair_range), pair_range.stop
    if group:
        yield group


NullDraws = tuple[list[float], list[float]]


_Solution = tuple[Tensor, Tensor, NullDraws]


@dataclass(frozen=True, eq=False)
class _CostTables:
    """Pairs of clouds with equal numbers of tokens, and their cost tables for points and for directions."""

    x: CloudStack
    y: CloudStack
    point_cost: Float[Tensor, "p n n"]
    direction_cost: Float[Tensor, "p n n"]

    def solve(self, pair_range: range, draws: Sequence[int], seed: int) -> list[_Solution]:
        """The couplings and null draws of some pairs.

        The CPU solves the couplings, so that equally good ones are chosen in the same way on every device.
        """
        orders = (random_permutations(self.x.shape[1], draws[index], seed).to(self.x.device) for index in pair_range)
        null_draws = [
            null_from_tables(self.x[index], self.y[index], order)
            for index, order in zip(pair_range, orders, strict=True)
        ]
        coupling, partner = (
            assignments(table[pair_range.start : pair_range.stop].cpu())
            for table in (self.point_cost, self.direction_cost)
        )
        return list(zip(coupling, partner, null_draws, strict=True))

    def summarise(self, solutions: Sequence[_Solution]) -> list[PairTransport]:
        """The statistics of all pairs, with a single transfer from the device."""
        coupling, partner = (
            torch.stack([solution[0] for solution in solutions]),
            torch.stack([solution[1] for solution in solutions]),
        )
        best = _mean_square(take_partners(self.y, coupling) - self.x)
        identity = _mean_square(self.y - self.x)
        cost_rows = torch.stack(
            [identity, random_cost(self.x, self.y), best, fraction_in_place(partner, self.x)], -1
        ).tolist()
        return [
            _pair_transport(identity_cost, random_mean, min(best_cost, identity_cost), identity_share, *solution)
            for (identity_cost, random_mean, best_cost, identity_share), solution in zip(
                cost_rows, solutions, strict=True
            )
        ]


def _cost_tables(points: Float[Tensor, "t p n d"], pairs: Sequence[CloudPair]) -> _CostTables:
    starts, ends = (torch.tensor([pair[end] for pair in pairs], device=points.device) for end in (0, 1))
    x, y = (points[:, indices].flatten(0, 1) for indices in (starts, ends))
    return _CostTables(x, y, squared_distances(x, y), squared_distances(_centred_directions(x), _centred_directions(y)))


def transport_pair(x: Cloud, y: Cloud, draws: int, seed: int) -> PairTransport:
    """The statistics of one pair of clouds, with their nulls."""
    identity, random, best, coupling = transport_costs(x, y)
    partner, orders = direction_coupling(x, y), random_permutations(len(x), draws, seed)
    null_draws = (null_from_tables if len(x) <= MAX_EXACT_TOKENS else null_from_clouds)(x, y, orders)
    return _pair_transport(
        identity, random, best, float(fraction_in_place(partner, x)), coupling.cpu(), partner, null_draws
    )


def _pair_transport(
    identity: float,
    random: float,
    best: float,
    identity_share: float,
    coupling: Tensor,
    partner: Tensor,
    null_draws: NullDraws,
) -> PairTransport:
    kappas, shares = null_draws
    statistics = {
        "identity_cost": identity,
        "w2_squared": best,
        "random_cost": random,
        "kappa": kappa(identity, random, best),
        "kappa_null": _mean(kappas),
        "kappa_null_sd": _sd(kappas),
        "identity_share": identity_share,
        "identity_share_null": _mean(shares),
        "identity_share_null_sd": _sd(shares),
        "efficiency": best / identity if identity > 0 else 1.0,
    }
    return PairTransport(statistics, coupling, partner, {"kappa": kappas, "identity_share": shares})


def null_from_clouds(x: Cloud, y: Cloud, orders: Int[Tensor, "draw n"]) -> NullDraws:
    """κ and identity share for permuted displacements, computed from the clouds."""
    permuted_clouds = [x + (y - x)[order] for order in orders]
    return [kappa(*transport_costs(x, z)[:3]) for z in permuted_clouds], [
        float(fraction_in_place(direction_coupling(x, z), x)) for z in permuted_clouds
    ]


def null_from_tables(x: Cloud, y: Cloud, orders: Int[Tensor, "draw n"]) -> NullDraws:
    """The same from ⟨x_i, x_j⟩ and ⟨x_i, Δ_j⟩. With z = x + Δ_π, only −2⟨x_i, z_j⟩ depends on the assignment."""
    if not len(orders):
        return [], []
    tables = _permutation_tables(x, y)
    kappas: list[float] = []
    shares: list[float] = []
    for inner, permuted_squares in tables.permuted(orders):
        kappas += tables.kappas(inner, permuted_squares)
        shares += tables.identity_shares(inner, permuted_squares).tolist()
    return kappas, shares


def identity_shares(x: CloudStack, y: CloudStack) -> Float[Tensor, " p"]:
    """The share of tokens that the optimal coupling of centred directions keeps in place, for every pair of clouds."""
    if x.shape[-2] > MAX_EXACT_TOKENS:
        partner = torch.stack([direction_coupling(start, end) for start, end in zip(x, y, strict=True)])
    else:
        partner = assignments(squared_distances(_centred_directions(x), _centred_directions(y)))
    return fraction_in_place(partner, x)


def identity_share_null(x: CloudStack, y: CloudStack, orders: Int[Tensor, "draw n"]) -> Float[Tensor, "p draw"]:
    """The identity share for permuted displacements, without κ, which takes half of the assignments."""
    if x.shape[-2] > MAX_EXACT_TOKENS:
        return torch.stack([identity_shares(x, x + (y - x)[:, order]) for order in orders], -1)
    tables = _permutation_tables(x, y)
    return torch.cat([tables.identity_shares(*permuted) for permuted in tables.permuted(orders)], -1)


@dataclass(frozen=True, eq=False)
class _PermutationTables:
    """Inner products of the centred points x_i with each other and with the centred displacements Δ_j."""

    point_products: Float[Tensor, "*p n n"]
    displacement_products: Float[Tensor, "*p n n"]
    displacement_squares: Float[Tensor, "*p n"]
    shift: Float[Tensor, "*p"]
    same_point_square: Float[Tensor, "*p"]

    @property
    def point_squares(self) -> Float[Tensor, "*p n"]:
        return self.point_products.diagonal(dim1=-2, dim2=-1)

    def permuted(
        self, orders: Int[Tensor, "draw n"]
    ) -> Iterator[tuple[Float[Tensor, "*p chunk n n"], Float[Tensor, "*p chunk n"]]]:
        """⟨x_i, z_j⟩ and ‖z_j‖² for z = x + Δ_π, in chunks of permutations π that fit in the cache."""
        products, rows = self.displacement_products, torch.arange(orders.shape[1], device=orders.device)
        for chunk in orders.split(max(1, cache_block_numel(products.device) // products.numel())):
            inner = self.point_products[..., None, :, :] + products[..., chunk].movedim(-2, -3)
            permuted_displacement = 2 * products[..., rows, chunk] + self.displacement_squares[..., chunk]
            yield inner, (self.point_squares[..., None, :] + permuted_displacement).clamp(min=0)

    def kappas(self, inner: Float[Tensor, "chunk n n"], permuted_squares: Float[Tensor, "chunk n"]) -> list[float]:
        identity_product, random = (
            inner.diagonal(dim1=-2, dim2=-1).double().mean(-1),
            (self.point_squares + permuted_squares).double().mean(-1) + self.shift,
        )
        best_product = torch.maximum(
            inner.gather(-1, assignments(-inner)[..., None])[..., 0].double().mean(-1), identity_product
        )
        costs = random - 2 * identity_product, random, random - 2 * best_product
        return list(map(kappa, *(cost.tolist() for cost in costs)))

    def identity_shares(
        self, inner: Float[Tensor, "*p chunk n n"], permuted_squares: Float[Tensor, "*p chunk n"]
    ) -> Float[Tensor, "*p chunk"]:
        squares = self.point_squares[..., None, :]
        inverse_norms, inverse_permuted = (x.sqrt().clamp(min=1e-30).reciprocal() for x in (squares, permuted_squares))
        partner = assignments((inner * -inverse_norms[..., None]).mul_(inverse_permuted[..., None, :]).add_(1))
        partner_product = self.point_products[..., None, :, :].expand_as(inner).gather(-1, partner[..., None])[..., 0]
        squared_distance = squares + squares.expand_as(partner).gather(-1, partner) - 2 * partner_product
        return (squared_distance <= self.same_point_square[..., None, None]).double().mean(-1)


def _permutation_tables(x: Float[Tensor, "*p n d"], y: Float[Tensor, "*p n d"]) -> _PermutationTables:
    same_point_square = SAME_POINT_TOLERANCE**2 * x.square().sum(-1).amax(-1)
    shift = (y.mean(-2) - x.mean(-2)).square().sum(-1)
    y, x = y - y.mean(-2, keepdim=True), x - x.mean(-2, keepdim=True)
    displacement = y - x
    return _PermutationTables(x @ x.mT, x @ displacement.mT, displacement.square().sum(-1), shift, same_point_square)


def transport_costs(x: Cloud, y: Cloud) -> tuple[float, float, float, Int[Tensor, " n"]]:
    """The costs of identity, of random pairing and of the optimal coupling, and that coupling."""
    best, coupling = optimal_transport(x, y)
    identity = float(_mean_square(y - x))
    return identity, float(random_cost(x, y)), min(best, identity), coupling


def random_cost(x: Float[Tensor, "*p n d"], y: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p"]:
    """mean ‖y_j − x_i‖² over all pairs, from both variances and the distance of the means."""
    a, b = x.mean(-2, keepdim=True), y.mean(-2, keepdim=True)
    return _mean_square(x - a) + _mean_square(y - b) + (b - a).square().sum((-2, -1))


def _mean_square(x: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p"]:
    return x.square().sum(-1).mean(-1)


def optimal_transport(x: Cloud, y: Cloud) -> tuple[float, Int[Tensor, " n"]]:
    """W₂² and its coupling: exact up to `MAX_EXACT_TOKENS` tokens, by the Sinkhorn divergence beyond."""
    if len(x) > MAX_EXACT_TOKENS:
        return sinkhorn_divergence(x, y)
    coupling = assignment(squared_distances(x, y))
    return float(_mean_square(take_partners(y, coupling) - x)), coupling


def squared_distances(x: Float[Tensor, "*p n d"], y: Float[Tensor, "*p m d"]) -> Float[Tensor, "*p n m"]:
    """‖y_j − x_i‖² for all pairs. Both clouds are shifted by one centre to reduce cancellation."""
    centre = x.mean(-2, keepdim=True)
    x, y = x - centre, y - centre
    return (x.square().sum(-1)[..., None] + y.square().sum(-1)[..., None, :] - 2 * x @ y.mT).clamp(min=0)


def assignment(cost: Float[Tensor, "n n"]) -> Int[Tensor, " n"]:
    """The permutation σ that minimises Σ C_iσ(i); the identity if it is equally good."""
    return assignments(cost)


def assignments(cost: Float[Tensor, "*p n n"]) -> Int[Tensor, "*p n"]:
    """The optimal assignment of every table, on the device of the tables. Other threads run while a table is solved."""
    tables = cost.flatten(0, -3) if cost.ndim > 2 else cost[None]
    if HAS_TRITON and cost.is_cuda and cost.shape[-1] <= MAX_KERNEL_TOKENS:
        from rheoscope.flow.kernels.assign import assign  # imports Triton, which is optional

        columns = assign(tables)
    else:
        columns = _assign_on_cpu(tables).to(cost.device)
    identity_costs = tables.diagonal(dim1=-2, dim2=-1).sum(-1)
    best_costs = tables.gather(-1, columns[..., None])[..., 0].sum(-1)
    is_identity = identity_costs - best_costs <= 1e-12 * best_costs.abs()
    identity = torch.arange(cost.shape[-1], device=cost.device)
    return torch.where(is_identity[:, None], identity, columns).reshape(cost.shape[:-1])


def _assign_on_cpu(tables: Float[Tensor, "p n n"]) -> Int[Tensor, "p n"]:
    import lap

    arrays = np.ascontiguousarray(tables.cpu().numpy())
    columns = [lap.lapjvr(table, return_cost=False, precision="float64")[1] for table in arrays]
    return torch.from_numpy(np.array(columns, np.int64)).reshape(tables.shape[:2])


def kappa(identity: float, random: float, best: float) -> float:
    """κ from the three costs; 1 if every pairing has the same cost."""
    return (random - identity) / (random - best) if random - best > 1e-12 * random else 1.0


def direction_coupling(x: Cloud, y: Cloud) -> Int[Tensor, " n"]:
    """The optimal coupling of the centred directions."""
    return optimal_transport(_centred_directions(x), _centred_directions(y))[1].cpu()


def fraction_in_place(partner: Int[Tensor, "*p n"], x: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p"]:
    """The share of tokens that a coupling maps to a token of their own type, which is at the same point up to rounding."""
    distance = (take_partners(x, partner) - x).norm(dim=-1)
    return (distance <= SAME_POINT_TOLERANCE * x.norm(dim=-1).amax(-1, keepdim=True)).double().mean(-1)


def take_partners(y: Float[Tensor, "*p n d"], partner: Int[Tensor, "*p n"]) -> Float[Tensor, "*p n d"]:
    """The point of the partner of every token."""
    return y.gather(-2, partner.to(y.device)[..., None].expand_as(y))


def _centred_directions(x: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p n d"]:
    centred = x - x.mean(-2, keepdim=True)
    return centred / centred.norm(dim=-1, keepdim=True).clamp(min=1e-30)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _sd(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else float("nan")
