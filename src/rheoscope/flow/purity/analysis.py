"""Are clusters semantic? Whether token types of one cluster share a name, against the same names dealt out at random among types."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.clusters.analysis import clusters as clusters_of
from rheoscope.flow.purity.stem import stem
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.results import Results
from rheoscope.space.settings import Draws, Seed
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import random_permutations, z_scores

if TYPE_CHECKING:
    import xarray

Labels = Mapping[str, Mapping[str, object]]
"""Heading → word → name."""
NAMELESS = -1


def frequency_bins(trace: Trace, ids: Sequence[int]) -> list[object]:
    """How often a type stands in the text, in doublings: 1, 2 to 3, 4 to 7, … times are one name each."""
    return [int((trace.ids == token_id).sum()).bit_length() for token_id in ids]


BUILT_IN_NAMINGS: dict[str, Callable[[Trace, Sequence[int]], list[object]]] = {
    "stem": lambda trace, ids: [stem(token_text) for token_text in _token_texts(trace, ids)],
    "frequency": frequency_bins,
}


@torch.no_grad()
def purity(
    trace: Trace,
    clusters: "xarray.Dataset | None" = None,
    labels: Labels | None = None,
    draws: Draws = 200,
    seed: Seed = 0,
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
    clustering = clusters_of(trace) if clusters is None else _check_same_text(trace, clusters)
    ids = list(dict.fromkeys(int(trace.ids[position]) for position in clustering.token.values))
    names_by_heading = _name_ids_by_heading(trace, ids, labels or {})
    values = kernel(
        torch.as_tensor(clustering.type_label.values), torch.stack(list(names_by_heading.values())), draws, seed
    )
    coords = {"point": clustering.point.values, "by": list(names_by_heading)}
    attributes = {name: value for name, value in clustering.attrs.items() if name not in ("analysis", "seed", "draws")}
    settings = {"clusters": clustering.attrs["analysis"], "draws": draws, "seed": seed}
    return PURITY.label(values, coords, attributes | settings)


def kernel(labels: Int[Tensor, "p t"], namings: Int[Tensor, "by t"], draws: int, seed: int) -> dict[str, Tensor]:
    """Purity of every clustering under every naming, beside the same names permuted; without draws nothing beside it."""
    table = torch.stack([permuted_purity(labels, naming, draws, seed) for naming in namings], 1)
    observed, null = table[..., 0], table[..., 1:]
    has_name = namings != NAMELESS
    same_name = (namings[:, :, None] == namings[:, None, :]) & has_name[:, :, None]
    values = {"purity": observed, "named": has_name.sum(-1), "pairs": (same_name.sum((-2, -1)) - has_name.sum(-1)) // 2}
    if not draws:
        return values
    null_mean = null.mean(-1)
    null_sd = null.std(-1) if draws > 1 else torch.full_like(observed, torch.nan)
    null_sd = torch.where(null_sd > 1e-12, null_sd, null_sd * 0)  # equal sums may differ by rounding
    return values | {
        "purity_null": null_mean,
        "purity_null_sd": null_sd,
        "purity_z": z_scores(observed, null_mean, null_sd),
        "p_value": (table >= observed[..., None] - 1e-12).double().mean(-1),
        "p_value_anywhere": max_excess_p_value(table[1:] if len(table) > 1 else table),
    }


def permuted_purity(
    labels: Int[Tensor, "p t"], names: Int[Tensor, " t"], draws: int, seed: int
) -> Float[Tensor, "p draws"]:
    """Purity at every point under one naming and its permutations, the naming itself first; types without a name left out."""
    has_name = names != NAMELESS
    known_names = names[has_name]
    orders = torch.cat([torch.arange(len(known_names))[None], random_permutations(len(known_names), draws, seed)])
    return torch.stack([cluster_purity(point_labels[has_name], known_names[orders]) for point_labels in labels])


def cluster_purity(label: Int[Tensor, " n"], names: Int[Tensor, "draw n"]) -> Float[Tensor, " draw"]:
    """Purity of one clustering under many namings at once; a type alone in its cluster is pure under any."""
    _, cluster, sizes = label.unique(return_inverse=True, return_counts=True)
    is_shared = sizes[cluster] > 1
    n_singletons = int((~is_shared).sum())
    if n_singletons == len(label):
        return torch.ones(len(names), dtype=torch.float64)
    cluster, names = cluster[is_shared].unique(return_inverse=True)[1], names[:, is_shared]
    n_clusters, n_names = int(cluster.max()) + 1, int(names.max()) + 1
    counts = torch.zeros(len(names), n_clusters * n_names, dtype=torch.int32)
    counts.scatter_add_(1, cluster * n_names + names, torch.ones(names.shape, dtype=torch.int32))
    return (counts.unflatten(1, (n_clusters, n_names)).amax(-1).sum(-1) + n_singletons).double() / len(label)


def max_excess_p_value(table: Float[Tensor, "p by draws"]) -> Float[Tensor, " by"]:
    """p of the largest excess over all points: what is picked as a maximum is compared with maxima."""
    excess = (table - table.mean(-1, keepdim=True)).amax(0)
    return (excess >= excess[:, :1] - 1e-12).double().mean(-1)


def _check_same_text(trace: Trace, clusters: "xarray.Dataset") -> "xarray.Dataset":
    """Clusters, after a look whether they are those of this text in this model."""
    mismatches = [name for name in ("text", "weights") if clusters.attrs.get(name) != trace.provenance.get(name)]
    positions = clusters.token.values.tolist()
    token_texts = [trace.tokens[position] for position in positions if position < len(trace)]
    covers_text = {*positions, *clusters.attrs["massive"]} == set(range(len(trace)))
    if (
        mismatches
        or not covers_text
        or ("token_text" in clusters and clusters.token_text.values.tolist() != token_texts)
    ):
        raise RheoscopeError(
            f"clusters are those of the same text in the same model, got another {' and '.join(mismatches) or 'text'}; "
            "type clusters=rs.clusters(trace)"
        )
    return clusters


def _token_texts(trace: Trace, ids: Sequence[int]) -> list[str]:
    text_of = {int(token_id): token_text for token_id, token_text in zip(trace.ids, trace.tokens, strict=True)}
    return [text_of[token_id] for token_id in ids]


def _name_ids_by_heading(trace: Trace, ids: list[int], labels: Labels) -> dict[str, Int[Tensor, " t"]]:
    names_by_heading = {heading: namer(trace, ids) for heading, namer in BUILT_IN_NAMINGS.items()}
    for heading, names_by_word in labels.items():
        names_by_heading[heading] = [_lookup_name(token_text, names_by_word) for token_text in _token_texts(trace, ids)]
        if sum(name is not None for name in names_by_heading[heading]) < 2:
            raise RheoscopeError(
                f"{heading!r} names fewer than 2 tokens of this text ({len(names_by_word)} words given); type words that are "
                f"tokens of it, such as {', '.join(repr(token_text.strip()) for token_text in _token_texts(trace, ids)[:3])}"
            )
    return {heading: _as_ids(names) for heading, names in names_by_heading.items()}


def _lookup_name(token_text: str, names_by_word: Mapping[str, object]) -> object:
    """The name of a word as it is, without space, or in small letters; None where it has none."""
    return next(
        (
            names_by_word[key]
            for key in (token_text, token_text.strip(), token_text.strip().casefold())
            if key in names_by_word
        ),
        None,
    )


def _as_ids(names: Sequence[object]) -> Int[Tensor, " t"]:
    id_of_name = {name: index for index, name in enumerate(dict.fromkeys(name for name in names if name is not None))}
    return torch.tensor([NAMELESS if name is None else id_of_name[name] for name in names])


def _report_settings(results: Results) -> dict[str, Any]:
    """The clusters that the report has already found."""
    return {"draws": 999} | ({"clusters": results.datasets["clusters"]} if results.has("clusters") else {})


PURITY = Analysis(
    name="purity",
    question="What are clusters made of: forms of one word, one frequency, what a person gave one name?",
    ask=purity,
    needs="trace",
    depends_on=("clusters",),
    report=_report_settings,
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
