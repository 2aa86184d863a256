"""Are clusters semantic? Whether tokens of one cluster share a name, against the same names dealt out at random."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.stem import stem
from rheoscope.shapes import RheoscopeError
from rheoscope.space.dataset import dataset
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray

DEFINITIONS = {
    "purity": "share of tokens whose name is the commonest one in their cluster",
    "purity_null": "mean of the same with the names permuted among the tokens",
    "purity_z": "purity less its null, over the null's standard deviation",
    "p_value": "share of permutations at least as pure, the measured one counted with them",
}


def quarters(trace: Trace, kept: Sequence[int]) -> list[object]:
    """Which quarter of the text's tokens, ordered by id, a token lies in: byte-pair ids fall in frequency."""
    ids = sorted({int(trace.ids[i]) for i in kept})
    return [4 * ids.index(int(trace.ids[i])) // len(ids) for i in kept]


NAMES: dict[str, Callable[[Trace, Sequence[int]], list[object]]] = {
    "token": lambda trace, kept: [int(trace.ids[i]) for i in kept],
    "stem": lambda trace, kept: [stem(trace.tokens[i]) for i in kept],
    "frequency": quarters,
    "position": lambda trace, kept: [4 * i // len(trace) for i in kept],
}


@torch.no_grad()
def purity(
    trace: Trace,
    found: "xarray.Dataset",
    names: Mapping[str, Sequence[object]] | None = None,
    draws: int = 200,
    seed: int = 0,
) -> "xarray.Dataset":
    """What the clusters of `clusters` or `density_clusters` are made of.

    **Answers** "do clusters hold the same token, the same stem, equally frequent tokens, the same part of the text?"

    **Formula** purity = (1/n) Σ_clusters max_name |cluster ∩ name|. It grows with the number of clusters, so only its distance
    from the null (names permuted, clusters as they are) says anything.

    **Shapes** `found` is the Dataset of `clusters(trace)`; `names` maps a heading to one name per token of the text (word
    classes, lemmas, topics, …) and is added to `token`, `stem` (English, in the place of a lemma, which would need a dictionary),
    `frequency` (quarter of the text's tokens in the order of their ids, which fall in frequency) and `position` (quarter of the text).

    **Gives** (point, by): `purity`, `purity_null`, `purity_z`, `p_value`.

    **Laws** 1 where every cluster holds one name; the null's own p-values are uniform.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet are on the table, and the table is in the hall")
    >>> made_of = rs.purity(trace, rs.clusters(trace))
    >>> bool((made_of.purity.sel(by="token") <= 1).all())
    True
    """
    kept, headings = found.token.values.tolist(), _named(trace, found.token.values.tolist(), names)
    draw = torch.Generator().manual_seed(seed)
    orders = torch.stack([torch.arange(len(kept)), *(torch.randperm(len(kept), generator=draw) for _ in range(draws))])
    table = torch.stack(
        [
            torch.stack([pure(torch.as_tensor(label), name[orders]) for name in headings.values()])
            for label in found.label.values
        ]
    )
    measured, null = table[..., 0], table[..., 1:]
    spread = null.std(-1)
    values = {
        "purity": measured,
        "purity_null": null.mean(-1),
        "purity_z": torch.where(spread > 0, (measured - null.mean(-1)) / torch.where(spread > 0, spread, 1), 0),
        "p_value": (table >= measured[..., None] - 1e-12).double().mean(-1),
    }
    coords = {"point": found.point.values, "by": list(headings)}
    attributes = {name: found.attrs[name] for name in found.attrs if name not in ("analysis", "seed")}
    told = {"analysis": "purity", "clusters": found.attrs["analysis"], "draws": draws, "seed": seed}
    return dataset({name: (("point", "by"), x) for name, x in values.items()}, DEFINITIONS, coords, attributes | told)


def pure(label: Int[Tensor, " n"], names: Int[Tensor, "draw n"]) -> Float[Tensor, " draw"]:
    """Purity of one clustering under many namings at once."""
    cluster = label.unique(return_inverse=True)[1]
    clusters, kinds = int(cluster.max()) + 1, int(names.max()) + 1
    counts = torch.zeros(len(names), clusters * kinds, dtype=torch.float64)
    counts.scatter_add_(1, cluster * kinds + names, torch.ones(names.shape, dtype=torch.float64))
    return counts.unflatten(1, (clusters, kinds)).amax(-1).sum(-1) / len(label)


def _named(trace: Trace, kept: list[int], names: Mapping[str, Sequence[object]] | None) -> dict[str, Int[Tensor, " n"]]:
    for heading, given in (names or {}).items():
        if len(given) != len(trace):
            raise RheoscopeError(
                f"{heading!r} names {len(given)} tokens, the text has {len(trace)}; type one name per token"
            )
    told = {heading: make(trace, kept) for heading, make in NAMES.items()}
    told |= {heading: [given[i] for i in kept] for heading, given in (names or {}).items()}
    return {heading: _numbers(given) for heading, given in told.items()}


def _numbers(given: Sequence[object]) -> Int[Tensor, " n"]:
    seen = {name: at for at, name in enumerate(dict.fromkeys(given))}
    return torch.tensor([seen[name] for name in given])
