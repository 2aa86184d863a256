"""Are clusters semantic? Whether tokens of one cluster share a name, against the same names dealt out at random."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.clusters import clusters as clusters_of
from rheoscope.flow.stem import stem
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.chance import permutations, z_scores
from rheoscope.space.trace import Trace

if TYPE_CHECKING:
    import xarray


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
    clusters: "xarray.Dataset | None" = None,
    names: Mapping[str, Sequence[object]] | None = None,
    draws: int = 200,
    seed: int = 0,
) -> "xarray.Dataset":
    """What the clusters of `clusters` or `density_clusters` are made of.

    **Answers** "do clusters hold the same token, the same stem, equally frequent tokens, the same part of the text?"

    **Formula** purity = (1/n) Σ_clusters max_name |cluster ∩ name|. It grows with the number of clusters, so only its distance
    from the null (names permuted, clusters as they are) says anything.

    **Shapes** `clusters` is a Dataset of `clusters` or `density_clusters` (`clusters(trace)`, unless given);
    `names` maps a heading to one name per token of the text (word
    classes, lemmas, topics, …) and is added to `token`, `stem` (English, in the place of a lemma, which would need a dictionary),
    `frequency` (quarter of the text's tokens in the order of their ids, which fall in frequency) and `position` (quarter of the text).

    **Gives** (point, by): `purity`, `purity_null`, `purity_z`, `p_value`; `draws=0` leaves out all but the first.

    **Laws** 1 where every cluster holds one name; the null's own p-values are uniform.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet are on the table, and the table is in the hall")
    >>> made_of = rs.purity(trace)
    >>> bool((made_of.purity.sel(by="token") <= 1).all())
    True
    """
    found = clusters_of(trace) if clusters is None else _of_this_text(trace, clusters)
    kept = found.token.values.tolist()
    headings = _named(trace, kept, names)
    values = kernel(torch.as_tensor(found.label.values), torch.stack(list(headings.values())), draws, seed)
    coords = {"point": found.point.values, "by": list(headings)}
    attributes = {name: value for name, value in found.attrs.items() if name not in ("analysis", "seed", "draws")}
    settings = {"clusters": found.attrs["analysis"], "draws": draws, "seed": seed}
    return PURITY.answer(values, coords, attributes | settings)


def kernel(label: Int[Tensor, "p n"], names: Int[Tensor, "by n"], draws: int, seed: int) -> dict[str, Tensor]:
    """Purity of every clustering under every naming, beside the same names permuted; without draws nothing beside it."""
    orders = torch.cat([torch.arange(label.shape[-1])[None], permutations(label.shape[-1], draws, seed)])
    table = torch.stack([torch.stack([pure(one, name[orders]) for name in names]) for one in label])
    measured, null = table[..., 0], table[..., 1:]
    if not draws:
        return {"purity": measured}
    spread = null.std(-1) if draws > 1 else torch.full_like(measured, torch.nan)
    return {
        "purity": measured,
        "purity_null": null.mean(-1),
        "purity_z": z_scores(measured, null.mean(-1), spread),
        "p_value": (table >= measured[..., None] - 1e-12).double().mean(-1),
    }


def pure(label: Int[Tensor, " n"], names: Int[Tensor, "draw n"]) -> Float[Tensor, " draw"]:
    """Purity of one clustering under many namings at once."""
    cluster = label.unique(return_inverse=True)[1]
    clusters, kinds = int(cluster.max()) + 1, int(names.max()) + 1
    counts = torch.zeros(len(names), clusters * kinds, dtype=torch.float64)
    counts.scatter_add_(1, cluster * kinds + names, torch.ones(names.shape, dtype=torch.float64))
    return counts.unflatten(1, (clusters, kinds)).amax(-1).sum(-1) / len(label)


def _of_this_text(trace: Trace, clusters: "xarray.Dataset") -> "xarray.Dataset":
    """Clusters, after a look whether they are those of this text in this model."""
    other = [name for name in ("text", "weights") if clusters.attrs.get(name) != trace.provenance.get(name)]
    kept = clusters.token.values.tolist()
    words = [trace.tokens[at] for at in kept if at < len(trace)]
    whole = {*kept, *clusters.attrs["massive"]} == set(range(len(trace)))
    if other or not whole or ("word" in clusters and clusters.word.values.tolist() != words):
        raise RheoscopeError(
            f"clusters are those of the same text in the same model, got another {' and '.join(other) or 'text'}; "
            "type clusters=rs.clusters(trace)"
        )
    return clusters


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


PURITY = Analysis(
    name="purity",
    question="What are clusters made of: one token, one stem, one frequency, one part of the text?",
    ask=purity,
    needs="trace",
    fields={
        "purity": Field(
            ("point", "by"), "share of tokens whose name is the commonest one in their cluster", null="purity_null"
        ),
        "purity_null": Field(("point", "by"), "mean of the same with the names permuted among the tokens"),
        "purity_z": Field(("point", "by"), "purity less its null, over the null's standard deviation"),
        "p_value": Field(("point", "by"), "share of permutations at least as pure, the measured one counted with them"),
    },
)
