"""Are clusters semantic? Whether token types of one cluster share a name, against the same names dealt out at random among types."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.clusters.analysis import clusters as clusters_of
from rheoscope.flow.purity.stem import stem
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import permutations, z_scores

if TYPE_CHECKING:
    import xarray

Labels = Mapping[str, Mapping[str, object]]
"""Heading → word → name."""
NAMELESS = -1


def doublings(trace: Trace, ids: Sequence[int]) -> list[object]:
    """How often a type stands in the text, in doublings: 1, 2 to 3, 4 to 7, … times are one name each."""
    return [int((trace.ids == one).sum()).bit_length() for one in ids]


NAMES: dict[str, Callable[[Trace, Sequence[int]], list[object]]] = {
    "stem": lambda trace, ids: [stem(word) for word in _words(trace, ids)],
    "frequency": doublings,
}


@torch.no_grad()
def purity(
    trace: Trace,
    clusters: "xarray.Dataset | None" = None,
    labels: Labels | None = None,
    draws: int = 200,
    seed: int = 0,
) -> "xarray.Dataset":
    """What the clusters of `clusters` or `density_clusters` are made of, token identity apart.

    **Answers** "do clusters hold forms of one word, equally frequent tokens, or what a person has given one name?"

    **Formula** purity = (1/n) Σ_clusters max_name |cluster ∩ name| over the n token types, one point each (`type_label`): tokens
    of one type start at one point, so that they are together says nothing. It grows with the number of clusters, so only
    its distance from the null (names permuted among types, clusters as they are) says anything.

    **Takes** `clusters`, a Dataset of `clusters` or `density_clusters` (`clusters(trace)`, unless given), and `labels`: for
    each heading, words and their names, `{"class": {"key": "thing", "are": "verb"}}`. A word is a token as it is, or
    without the space around it, or in small letters; types without a name are left out of that heading. Beside them stand `stem`
    (English, in the place of a lemma, which would need a dictionary) and `frequency` (how often the type stands in this text: 1,
    2 to 3, 4 to 7, … times).

    **Gives** (point, by): `purity`, `purity_null`, `purity_null_sd`, `purity_z`, `p_value`; (by): `named`, `pairs`, `p_value_anywhere`;
    `draws=0` leaves out what is drawn.

    **Laws** 1 where every cluster holds one name; the null's own p-values are uniform; a text whose tokens are all told twice
    has the same numbers where it has the same points.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet are on the table, and the table is in the hall")
    >>> made_of = rs.purity(trace, labels={"class": {"on": "place", "in": "place", "is": "verb", "are": "verb"}})
    >>> made_of.by.values.tolist(), int(made_of.named.sel(by="class"))
    (['stem', 'frequency', 'class'], 4)
    """
    found = clusters_of(trace) if clusters is None else _of_this_text(trace, clusters)
    ids = list(dict.fromkeys(int(trace.ids[at]) for at in found.token.values))
    headings = _named(trace, ids, labels or {})
    values = kernel(torch.as_tensor(found.type_label.values), torch.stack(list(headings.values())), draws, seed)
    coords = {"point": found.point.values, "by": list(headings)}
    attributes = {name: value for name, value in found.attrs.items() if name not in ("analysis", "seed", "draws")}
    settings = {"clusters": found.attrs["analysis"], "draws": draws, "seed": seed}
    return PURITY.answer(values, coords, attributes | settings)


def kernel(label: Int[Tensor, "p t"], names: Int[Tensor, "by t"], draws: int, seed: int) -> dict[str, Tensor]:
    """Purity of every clustering under every naming, beside the same names permuted; without draws nothing beside it."""
    table = torch.stack([of_names(label, name, draws, seed) for name in names], 1)
    measured, null = table[..., 0], table[..., 1:]
    there = names != NAMELESS
    same = (names[:, :, None] == names[:, None, :]) & there[:, :, None]
    values = {"purity": measured, "named": there.sum(-1), "pairs": (same.sum((-2, -1)) - there.sum(-1)) // 2}
    if not draws:
        return values
    mean = null.mean(-1)
    spread = null.std(-1) if draws > 1 else torch.full_like(measured, torch.nan)
    spread = torch.where(spread > 1e-12, spread, spread * 0)  # equal sums may differ by rounding
    return values | {
        "purity_null": mean,
        "purity_null_sd": spread,
        "purity_z": z_scores(measured, mean, spread),
        "p_value": (table >= measured[..., None] - 1e-12).double().mean(-1),
        "p_value_anywhere": anywhere(table[1:] if len(table) > 1 else table),
    }


def of_names(label: Int[Tensor, "p t"], names: Int[Tensor, " t"], draws: int, seed: int) -> Float[Tensor, "p draws"]:
    """Purity at every point under one naming and its permutations, the naming itself first; types without a name left out."""
    there = names != NAMELESS
    given = names[there]
    orders = torch.cat([torch.arange(len(given))[None], permutations(len(given), draws, seed)])
    return torch.stack([pure(one[there], given[orders]) for one in label])


def pure(label: Int[Tensor, " n"], names: Int[Tensor, "draw n"]) -> Float[Tensor, " draw"]:
    """Purity of one clustering under many namings at once; a type alone in its cluster is pure under any."""
    _, cluster, sizes = label.unique(return_inverse=True, return_counts=True)
    together = sizes[cluster] > 1
    alone = int((~together).sum())
    if alone == len(label):
        return torch.ones(len(names), dtype=torch.float64)
    cluster, names = cluster[together].unique(return_inverse=True)[1], names[:, together]
    clusters, kinds = int(cluster.max()) + 1, int(names.max()) + 1
    counts = torch.zeros(len(names), clusters * kinds, dtype=torch.int32)
    counts.scatter_add_(1, cluster * kinds + names, torch.ones(names.shape, dtype=torch.int32))
    return (counts.unflatten(1, (clusters, kinds)).amax(-1).sum(-1) + alone).double() / len(label)


def anywhere(table: Float[Tensor, "p by draws"]) -> Float[Tensor, " by"]:
    """p of the largest excess over all points: what is picked as a maximum is compared with maxima."""
    excess = (table - table.mean(-1, keepdim=True)).amax(0)
    return (excess >= excess[:, :1] - 1e-12).double().mean(-1)


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


def _words(trace: Trace, ids: Sequence[int]) -> list[str]:
    text_of = {int(one): word for one, word in zip(trace.ids, trace.tokens, strict=True)}
    return [text_of[one] for one in ids]


def _named(trace: Trace, ids: list[int], labels: Labels) -> dict[str, Int[Tensor, " t"]]:
    told = {heading: make(trace, ids) for heading, make in NAMES.items()}
    for heading, given in labels.items():
        told[heading] = [_name(word, given) for word in _words(trace, ids)]
        if sum(name is not None for name in told[heading]) < 2:
            raise RheoscopeError(
                f"{heading!r} names fewer than 2 tokens of this text ({len(given)} words given); type words that are "
                f"tokens of it, such as {', '.join(repr(word.strip()) for word in _words(trace, ids)[:3])}"
            )
    return {heading: _numbers(given) for heading, given in told.items()}


def _name(word: str, given: Mapping[str, object]) -> object:
    """The name of a word as it is, without space, or in small letters; None where it has none."""
    return next((given[one] for one in (word, word.strip(), word.strip().casefold()) if one in given), None)


def _numbers(given: Sequence[object]) -> Int[Tensor, " t"]:
    seen = {name: at for at, name in enumerate(dict.fromkeys(name for name in given if name is not None))}
    return torch.tensor([NAMELESS if name is None else seen[name] for name in given])


PURITY = Analysis(
    name="purity",
    question="What are clusters made of: forms of one word, one frequency, what a person gave one name?",
    ask=purity,
    needs="trace",
    fields={
        "purity": Field(
            ("point", "by"),
            "share of token types whose name is the commonest one in their cluster",
            null="purity_null",
            null_sd="purity_null_sd",
        ),
        "purity_null": Field(("point", "by"), "mean of the same with the names permuted among the types"),
        "purity_null_sd": Field(("point", "by"), "standard deviation of that over the permutations"),
        "purity_z": Field(
            ("point", "by"), "purity less its null, over the null's standard deviation; none without spread"
        ),
        "p_value": Field(("point", "by"), "share of permutations at least as pure, the measured one counted with them"),
        "p_value_anywhere": Field(
            ("by",),
            "share of permutations whose largest purity above its mean, over all points after the embedding, is at least as large",
        ),
        "named": Field(("by",), "number of token types that have a name"),
        "pairs": Field(("by",), "number of pairs of token types that share a name: what purity can speak of"),
    },
)
