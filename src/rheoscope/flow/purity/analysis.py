"""Purity: whether the token types of a cluster share a label, compared with permuted labels."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rheoscope.flow.clusters.analysis import clusters as clusters_of
from rheoscope.flow.purity.stem import stem
from rheoscope.messages.advice import Advice
from rheoscope.messages.message import Message
from rheoscope.shapes import RheoscopeError
from rheoscope.space.analysis import Analysis, Field
from rheoscope.space.results import Results
from rheoscope.space.settings import Draws, Seed
from rheoscope.space.trace import Trace
from rheoscope.statistics.nulls import random_permutations, z_scores

if TYPE_CHECKING:
    import xarray

Labels = Mapping[str, Mapping[str, object]]
"""Labelling → word → label."""
UNLABELLED = -1


def frequency_bins(trace: Trace, ids: Sequence[int]) -> list[object]:
    """The frequency class of every type in the text: 1, 2 to 3, 4 to 7, … occurrences."""
    return [int((trace.ids == token_id).sum()).bit_length() for token_id in ids]


BUILT_IN_LABELLINGS: dict[str, Callable[[Trace, Sequence[int]], list[object]]] = {
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
    """What the clusters of `clusters` or `density_clusters` consist of.

    **Question** Do clusters contain forms of one word, tokens of equal frequency, or words with the same user-defined label?

    **Formula** purity = (1/n) Σ_clusters max_label |cluster ∩ label| over the n token types, one point per type (`type_label`).
    Tokens of one type start at the same point, so repeated tokens must not count. Purity grows with the number of clusters. Only
    its distance from the null is meaningful, which permutes the labels among the types and keeps the clusters.

    **Returns** (point, by): `purity`, `purity_null`, `purity_null_sd`, `purity_z`, `p_value`. (by): `labelled_types`,
    `same_label_pairs`, `p_value_anywhere`. With `draws=0` the fields of the null are left out.

    **Settings** `clusters` is a result of `clusters` (default) or `density_clusters` for the same text. `labels` has one mapping
    from words to labels per labelling, `{"class": {"key": "thing", "are": "verb"}}`. A word matches a token exactly, without
    surrounding space, or in lower case. Types without a label are left out of that labelling. Two labellings are always included:
    `stem` (English word stems) and `frequency` (1, 2 to 3, 4 to 7, … occurrences in this text).

    **Laws** Purity is 1 if every cluster has one label. The p-values of the null are uniform. Repeating all tokens of a text at
    the same points changes nothing.

    >>> import rheoscope as rs
    >>> trace = rs.load().trace("The keys to the cabinet are on the table, and the table is in the hall")
    >>> result = rs.purity(trace, labels={"class": {"on": "place", "in": "place", "is": "verb", "are": "verb"}})
    >>> result.by.values.tolist(), int(result.labelled_types.sel(by="class"))
    (['stem', 'frequency', 'class'], 4)
    """
    clustering = clusters_of(trace) if clusters is None else _check_same_text(trace, clusters)
    ids = list(dict.fromkeys(int(trace.ids[position]) for position in clustering.token.values))
    labels_by_labelling = _label_ids(trace, ids, labels or {})
    values = kernel(
        torch.as_tensor(clustering.type_label.values), torch.stack(list(labels_by_labelling.values())), draws, seed
    )
    coords = {"point": clustering.point.values, "by": list(labels_by_labelling)}
    attributes = {name: value for name, value in clustering.attrs.items() if name not in ("analysis", "seed", "draws")}
    settings = {"clusters": clustering.attrs["analysis"], "draws": draws, "seed": seed}
    return PURITY.label(values, coords, attributes | settings)


def kernel(labels: Int[Tensor, "p t"], labellings: Int[Tensor, "by t"], draws: int, seed: int) -> dict[str, Tensor]:
    """Purity of every clustering under every labelling, with the permutation null if `draws` is positive."""
    table = torch.stack([permuted_purity(labels, labelling, draws, seed) for labelling in labellings], 1)
    observed, null = table[..., 0], table[..., 1:]
    has_label = labellings != UNLABELLED
    same_label = (labellings[:, :, None] == labellings[:, None, :]) & has_label[:, :, None]
    values = {
        "purity": observed,
        "labelled_types": has_label.sum(-1),
        "same_label_pairs": (same_label.sum((-2, -1)) - has_label.sum(-1)) // 2,
    }
    if not draws:
        return values
    null_mean = null.mean(-1)
    null_sd = null.std(-1) if draws > 1 else torch.full_like(observed, torch.nan)
    null_sd = torch.where(
        null_sd > 1e-12, null_sd, null_sd * 0
    )  # rounding can give equal values a tiny standard deviation
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
    """Purity at every point for one labelling, followed by its permutations. Types without a label are left out."""
    has_label = names != UNLABELLED
    known_labels = names[has_label]
    orders = torch.cat([torch.arange(len(known_labels))[None], random_permutations(len(known_labels), draws, seed)])
    return torch.stack([cluster_purity(point_labels[has_label], known_labels[orders]) for point_labels in labels])


def cluster_purity(label: Int[Tensor, " n"], names: Int[Tensor, "draw n"]) -> Float[Tensor, " draw"]:
    """Purity of one clustering under many labellings at once. A type alone in its cluster is always pure."""
    _, cluster, sizes = label.unique(return_inverse=True, return_counts=True)
    is_shared = sizes[cluster] > 1
    n_singletons = int((~is_shared).sum())
    if n_singletons == len(label):
        return torch.ones(len(names), dtype=torch.float64)
    cluster, names = cluster[is_shared].unique(return_inverse=True)[1], names[:, is_shared]
    n_clusters, n_labels = int(cluster.max()) + 1, int(names.max()) + 1
    counts = torch.zeros(len(names), n_clusters * n_labels, dtype=torch.int32)
    counts.scatter_add_(1, cluster * n_labels + names, torch.ones(names.shape, dtype=torch.int32))
    return (counts.unflatten(1, (n_clusters, n_labels)).amax(-1).sum(-1) + n_singletons).double() / len(label)


def max_excess_p_value(table: Float[Tensor, "p by draws"]) -> Float[Tensor, " by"]:
    """p-value of the largest excess over all points, compared with the largest excess of every permutation."""
    excess = (table - table.mean(-1, keepdim=True)).amax(0)
    return (excess >= excess[:, :1] - 1e-12).double().mean(-1)


def _check_same_text(trace: Trace, clusters: "xarray.Dataset") -> "xarray.Dataset":
    """Return the clusters. Raise an error if they belong to another text or another model."""
    mismatches = [name for name in ("text", "weights") if clusters.attrs.get(name) != trace.provenance.get(name)]
    positions = clusters.token.values.tolist()
    token_texts = [trace.tokens[position] for position in positions if position < len(trace)]
    covers_text = {*positions, *clusters.attrs["massive"]} == set(range(len(trace)))
    if (
        mismatches
        or not covers_text
        or ("token_text" in clusters and clusters.token_text.values.tolist() != token_texts)
    ):
        problem = (
            Message("clusters must belong to the same model as the trace, got clusters of other weights")
            if mismatches == ["weights"]
            else Message("clusters must belong to the same text as the trace, got clusters of another text")
        )
        raise RheoscopeError(problem, Advice("clusters=rs.clusters(trace)"))
    return clusters


def _token_texts(trace: Trace, ids: Sequence[int]) -> list[str]:
    text_of = {int(token_id): token_text for token_id, token_text in zip(trace.ids, trace.tokens, strict=True)}
    return [text_of[token_id] for token_id in ids]


def _label_ids(trace: Trace, ids: list[int], labels: Labels) -> dict[str, Int[Tensor, " t"]]:
    labels_by_labelling = {labelling: labeller(trace, ids) for labelling, labeller in BUILT_IN_LABELLINGS.items()}
    for labelling, labels_by_word in labels.items():
        labels_by_labelling[labelling] = [
            _lookup_label(token_text, labels_by_word) for token_text in _token_texts(trace, ids)
        ]
        if sum(name is not None for name in labels_by_labelling[labelling]) < 2:
            raise RheoscopeError(
                Message(
                    "the labels {labelling!r} must match at least 2 tokens of this text, such as {examples}; "
                    "{n} words were given",
                    labelling=labelling,
                    examples=", ".join(repr(token_text.strip()) for token_text in _token_texts(trace, ids)[:3]),
                    n=len(labels_by_word),
                )
            )
    return {labelling: _as_ids(names) for labelling, names in labels_by_labelling.items()}


def _lookup_label(token_text: str, labels_by_word: Mapping[str, object]) -> object:
    """The label of a token: exact match, then without surrounding space, then in lower case; None if there is none."""
    return next(
        (
            labels_by_word[key]
            for key in (token_text, token_text.strip(), token_text.strip().casefold())
            if key in labels_by_word
        ),
        None,
    )


def _as_ids(names: Sequence[object]) -> Int[Tensor, " t"]:
    id_of_label = {name: index for index, name in enumerate(dict.fromkeys(name for name in names if name is not None))}
    return torch.tensor([UNLABELLED if name is None else id_of_label[name] for name in names])


def _report_settings(results: Results) -> dict[str, Any]:
    """Reuse the clusters of the report if it has them."""
    return {"draws": 999} | ({"clusters": results.datasets["clusters"]} if results.has("clusters") else {})


PURITY = Analysis(
    name="purity",
    question="What do clusters consist of: forms of one word, equally frequent tokens, or words with the same label?",
    ask=purity,
    needs="trace",
    depends_on=("clusters",),
    report=_report_settings,
    fields={
        "purity": Field(
            ("point", "by"),
            "share of token types with the most common label of their cluster",
            null="purity_null",
            null_sd="purity_null_sd",
        ),
        "purity_null": Field(("point", "by"), "mean purity after permuting the labels among the types"),
        "purity_null_sd": Field(("point", "by"), "standard deviation of purity over the permutations"),
        "purity_z": Field(
            ("point", "by"), "(purity − purity_null) / purity_null_sd; NaN if the standard deviation is 0"
        ),
        "p_value": Field(
            ("point", "by"), "share of permutations with at least this purity, including the observed labels"
        ),
        "p_value_anywhere": Field(
            ("by",),
            "p-value of the largest excess of purity over its null among all points after the embedding",
        ),
        "labelled_types": Field(("by",), "number of token types with a label"),
        "same_label_pairs": Field(("by",), "number of pairs of token types with the same label"),
    },
)
