"""The cheapest way from one cloud to another: exact assignments, what they cost, and what chance gives; many pairs at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from statistics import stdev

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.attention.lower.block_size import numbers_in_cache
from rheoscope.flow.transport.sinkhorn import divergence
from rheoscope.space.cpu_cores import on_cores
from rheoscope.statistics.nulls import permutations

EXACT = 2048
"""Tokens up to which the assignment is solved; a cost matrix of float64 has 32 MiB there."""
SAME = 1e-6
"""Points nearer than this, in lengths of the longest, are one: the rounding of float32."""
AT_ONCE = 2**26
"""Bytes of cost matrices that lie beside each other, for each core."""
ALONE = 256
"""Tokens from which on a core takes one pair at a time; of fewer all of a text, for threads change places more slowly than that."""
Cloud = Float[Tensor, "n d"]
Clouds = Float[Tensor, "p n d"]
OfText = Float[Tensor, "p _ d"]
"""Texts differ in how many tokens they have."""
Ends = tuple[int, int]
"""Which clouds of a text a way begins and ends in."""


@dataclass(frozen=True, eq=False)
class Moved:
    """What it takes to bring one cloud to another: numbers, the coupling of points and of directions, what draws gave."""

    figures: dict[str, float]
    coupling: Int[Tensor, " n"]
    partner: Int[Tensor, " n"]
    drawn: dict[str, list[float]]


@torch.no_grad()
def all_moved(texts: Sequence[OfText], pairs: Sequence[Ends], draws: Sequence[int], seed: int) -> Iterator[Moved]:
    """What `moved` gives for every pair of clouds of every text, in their order: tables of many pairs are made together where the
    clouds are, and solved on all cores."""
    if max(points.shape[1] for points in texts) > EXACT:
        every = [(points, pair, drawn) for points in texts for pair, drawn in zip(pairs, draws, strict=True)]
        yield from on_cores(lambda job: moved(job[0][job[1][0]], job[0][job[1][1]], job[2], seed), every)
        return
    for group in _groups([points.shape[1] for points in texts], len(pairs)):
        tables = [
            _tables(torch.stack([texts[text] for text, _ in alike]), [pairs[at] for at in some])
            for (_, some), alike in _alike(group, texts)
        ]
        each = 1 if max(one.x.shape[1] for one in tables) >= ALONE or any(draws) else len(pairs)
        drawn = [[draws[at] for _, some in alike for at in some] for _, alike in _alike(group, texts)]
        jobs = [
            (one, range(at, min(at + each, len(of_pairs))), of_pairs)
            for one, of_pairs in zip(tables, drawn, strict=True)
            for at in range(0, len(of_pairs), each)
        ]
        solved = chain.from_iterable(on_cores(lambda job: job[0].solved(*job[1:], seed), jobs))
        for one in tables:
            yield from one.told(list(islice(solved, len(one.x))))


def _alike(group: list["_Part"], texts: Sequence[OfText]) -> list[tuple[tuple[int, range], list["_Part"]]]:
    """Neighbours with as many tokens each and the same pairs."""
    return [(key, list(some)) for key, some in groupby(group, lambda part: (texts[part[0]].shape[1], part[1]))]


_Part = tuple[int, range]
"""A text and some of its pairs."""


def _groups(sizes: Sequence[int], pairs: int) -> Iterator[list[_Part]]:
    """Texts of these sizes with some of their pairs each, as many as fit beside each other."""
    group: list[_Part] = []
    held, room = 0, AT_ONCE * torch.get_num_threads()
    for text, n in enumerate(sizes):
        begin, each = 0, 16 * n * n
        while begin < pairs:
            if group and held + each > room:
                yield group
                group, held = [], 0
            some = range(begin, min(pairs, begin + max(1, (room - held) // each)))
            group.append((text, some))
            held, begin = held + each * len(some), some.stop
    if group:
        yield group


Drawn = tuple[list[float], list[float]]


_Solved = tuple[Tensor, Tensor, Drawn]


@dataclass(frozen=True, eq=False)
class _Tables:
    """Some pairs of clouds of one text, or of several with as many tokens, with the costs of all their tokens: of points, and of
    directions."""

    x: Clouds
    y: Clouds
    cost: Float[Tensor, "p n n"]
    turned: Float[Tensor, "p n n"]

    def solved(self, some: range, draws: Sequence[int], seed: int) -> list[_Solved]:
        """The couplings of some pairs, and what chance gives; costs are fetched by whoever solves them."""
        cost, turned = (table[some.start : some.stop].cpu() for table in (self.cost, self.turned))
        orders = (permutations(self.x.shape[1], draws[at], seed) for at in some)
        drawn = [by_tables(self.x[at], self.y[at], order) for at, order in zip(some, orders, strict=True)]
        return [
            (assignment(one), assignment(other), chance) for one, other, chance in zip(cost, turned, drawn, strict=True)
        ]

    def told(self, solved: Sequence[_Solved]) -> list[Moved]:
        """All numbers of all pairs: the device is asked once."""
        coupling, partner = torch.stack([one[0] for one in solved]), torch.stack([one[1] for one in solved])
        best = _mean_square(paired(self.y, coupling) - self.x)
        identity = _mean_square(self.y - self.x)
        figures = torch.stack([identity, random_cost(self.x, self.y), best, in_place(partner, self.x)], -1).tolist()
        return [
            _moved(stay, random, min(least, stay), share, *one)
            for (stay, random, least, share), one in zip(figures, solved, strict=True)
        ]


def _tables(points: Float[Tensor, "t p n d"], pairs: Sequence[Ends]) -> _Tables:
    first, last = (torch.tensor([pair[end] for pair in pairs], device=points.device) for end in (0, 1))
    x, y = (points[:, at].flatten(0, 1) for at in (first, last))
    return _Tables(x, y, squared_distances(x, y), squared_distances(_directions(x), _directions(y)))


def moved(x: Cloud, y: Cloud, draws: int, seed: int) -> Moved:
    """All numbers of one pair of clouds, with their nulls."""
    identity, random, best, coupling = costs(x, y)
    partner, orders = directed(x, y), permutations(len(x), draws, seed)
    drawn = (by_tables if len(x) <= EXACT else by_clouds)(x, y, orders)
    return _moved(identity, random, best, float(in_place(partner, x)), coupling.cpu(), partner, drawn)


def _moved(
    identity: float, random: float, best: float, share: float, coupling: Tensor, partner: Tensor, drawn: Drawn
) -> Moved:
    kappas, shares = drawn
    figures = {
        "identity_cost": identity,
        "w2_squared": best,
        "random_cost": random,
        "kappa": kappa(identity, random, best),
        "kappa_null": _mean(kappas),
        "kappa_null_sd": _spread(kappas),
        "identity_share": share,
        "identity_share_null": _mean(shares),
        "identity_share_null_sd": _spread(shares),
        "efficiency": best / identity if identity > 0 else 1.0,
    }
    return Moved(figures, coupling, partner, {"kappa": kappas, "identity_share": shares})


def by_clouds(x: Cloud, y: Cloud, orders: Int[Tensor, "draw n"]) -> Drawn:
    """κ and identity share of the displacements in other orders, cloud by cloud."""
    permuted = [x + (y - x)[order] for order in orders]
    return [kappa(*costs(x, z)[:3]) for z in permuted], [float(in_place(directed(x, z), x)) for z in permuted]


def by_tables(x: Cloud, y: Cloud, orders: Int[Tensor, "draw n"]) -> Drawn:
    """The same from ⟨x_i, x_j⟩ and ⟨x_i, Δ_j⟩ alone: what a permutation can change of any cost is −2⟨x_i, z_j⟩, z = x + Δ_π."""
    if not len(orders):
        return [], []
    near = SAME**2 * float(x.square().sum(-1).amax())
    shift = float((y.mean(0) - x.mean(0)).square().sum())
    y, x = y - y.mean(0), x - x.mean(0)
    by, rows = y - x, torch.arange(len(x))
    points, steps, long = (x @ x.mT).cpu(), (x @ by.mT).cpu(), by.square().sum(-1).cpu()
    here = points.diagonal()
    kappas: list[float] = []
    shares: list[float] = []
    for some in orders.split(max(1, numbers_in_cache(points.device) // len(x) ** 2)):
        table = points + steps[:, some].movedim(1, 0)
        there = (here + 2 * steps[rows, some] + long[some]).clamp(min=0)
        stay, random = table.diagonal(dim1=-2, dim2=-1).double().mean(-1), (here + there).double().mean(-1) + shift
        most = torch.maximum(table.gather(-1, assignments(-table)[..., None])[..., 0].double().mean(-1), stay)
        kappas += map(kappa, (random - 2 * stay).tolist(), random.tolist(), (random - 2 * most).tolist())
        partner = assignments(1 - table / (here[:, None] * there[:, None]).sqrt().clamp(min=1e-60))
        apart = here + here[partner] - 2 * points[rows, partner]
        shares += (apart <= near).double().mean(-1).tolist()
    return kappas, shares


def costs(x: Cloud, y: Cloud) -> tuple[float, float, float, Int[Tensor, " n"]]:
    """Identity, random and least cost, summed in float64 over pairs, and the coupling of the least."""
    best, coupling = least(x, y)
    identity = float(_mean_square(y - x))
    return identity, float(random_cost(x, y)), min(best, identity), coupling


def random_cost(x: Float[Tensor, "*p n d"], y: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p"]:
    """mean ‖y_j − x_i‖² over all pairs: both spreads, and how far the means are apart."""
    a, b = x.mean(-2, keepdim=True), y.mean(-2, keepdim=True)
    return _mean_square(x - a) + _mean_square(y - b) + (b - a).square().sum((-2, -1))


def _mean_square(x: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p"]:
    return x.square().sum(-1).mean(-1)


def least(x: Cloud, y: Cloud) -> tuple[float, Int[Tensor, " n"]]:
    """W₂² and its coupling: exact up to `EXACT` tokens, the Sinkhorn divergence beyond."""
    if len(x) > EXACT:
        return divergence(x, y)
    coupling = assignment(squared_distances(x, y))
    return float(_mean_square(paired(y, coupling) - x)), coupling


def squared_distances(x: Float[Tensor, "*p n d"], y: Float[Tensor, "*p m d"]) -> Float[Tensor, "*p n m"]:
    """‖y_j − x_i‖² of all pairs, both clouds seen from one centre so that little cancels."""
    centre = x.mean(-2, keepdim=True)
    x, y = x - centre, y - centre
    return (x.square().sum(-1)[..., None] + y.square().sum(-1)[..., None, :] - 2 * x @ y.mT).clamp(min=0)


def assignment(cost: Float[Tensor, "n n"]) -> Int[Tensor, " n"]:
    """The permutation of least Σ C_iσ(i); the identity where it is as good as any."""
    import lap

    table = np.ascontiguousarray(cost.cpu().numpy())
    columns = lap.lapjvr(table, return_cost=False, precision="float64")[1]
    stay, best = float(np.trace(table)), float(table[np.arange(len(table)), columns].sum())
    if stay - best <= 1e-12 * abs(best):
        columns = np.arange(len(table))
    return torch.as_tensor(np.asarray(columns, dtype=np.int64))


def assignments(cost: Float[Tensor, "p n n"]) -> Int[Tensor, "p n"]:
    """The best partners of many tables, each by itself."""
    return torch.stack([assignment(one) for one in cost])


def kappa(identity: float, random: float, best: float) -> float:
    """1 where the clouds are points that cannot be told apart."""
    return (random - identity) / (random - best) if random - best > 1e-12 * random else 1.0


def directed(x: Cloud, y: Cloud) -> Int[Tensor, " n"]:
    """The optimal coupling of directions, each cloud seen from its mean."""
    return least(_directions(x), _directions(y))[1].cpu()


def in_place(partner: Int[Tensor, "*p n"], x: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p"]:
    """The share of tokens that a coupling sends to a token of their own type: to one at the same point, but for the rounding of
    float32."""
    apart = (paired(x, partner) - x).norm(dim=-1)
    return (apart <= SAME * x.norm(dim=-1).amax(-1, keepdim=True)).double().mean(-1)


def paired(y: Float[Tensor, "*p n d"], partner: Int[Tensor, "*p n"]) -> Float[Tensor, "*p n d"]:
    """The partner of every token."""
    return y.gather(-2, partner.to(y.device)[..., None].expand_as(y))


def _directions(x: Float[Tensor, "*p n d"]) -> Float[Tensor, "*p n d"]:
    centred = x - x.mean(-2, keepdim=True)
    return centred / centred.norm(dim=-1, keepdim=True).clamp(min=1e-30)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else float("nan")
